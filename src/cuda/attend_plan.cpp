// SPDX-License-Identifier: Apache-2.0
#include "cuda/attend_plan.h"

#include <algorithm>

#include "ops/plan.h"

namespace kv2::cuda {
namespace {

/// The longest tile is taken to be this much longer at most, so that a plan lasts for 8,192 tokens of
/// decoding.
constexpr int kStepPages = 128;

/// Pages of a block, as many as leave no tenth of the GPU idle: all blocks take about the same time, so they
/// should fill whole waves (measured on an H200, 32 sequences of 32,768 tokens: one wave of 256 blocks 0.163
/// ms, eight waves of an eighth of the pages 0.184 ms).
int choose_pages(const AttendPlan& plan, const KvShape& shape, int n_slots) {
  constexpr double kFull = 0.9;
  if (plan.tiles.empty()) return plan.max_pages;
  const int whole = run_begin(plan.max_runs());
  double best = 0;
  int chosen = whole;
  for (int pages = whole; pages > 0; pages -= kMinRunPages) {
    if (pages % kMaxRunPages != 0 && whole > 128) continue;
    int64_t n = 0;
    for (const AttendTile& t : plan.tiles) n += t.query_page / pages + 1;
    n *= shape.n_kv_heads;
    const double used = static_cast<double>(n) / static_cast<double>((n + n_slots - 1) / n_slots * n_slots);
    if (used <= best) continue;
    best = used;
    chosen = pages;
    if (used >= kFull) break;
  }
  return chosen;
}

/// A page's queries, for one KV head and all its query heads, in tiles of `pairs` at most; `to` is appended
/// to.
void cut_page(const kv2::AttendTile& page, const SequenceView& s, const KvShape& shape,
              const Visibility& rule, int pairs, std::vector<AttendTile>& to) {
  const int q_per_kv = shape.q_per_kv(), heads = std::min(q_per_kv, pairs),
            queries = std::max(1, pairs / q_per_kv);
  const PageRange packed = page.packed_pages(rule);
  for (int query = 0; query < page.n_queries; query += queries)
    for (int head = 0; head < q_per_kv; head += heads)
      to.push_back({.first_row = page.first_row + query,
                    .n_queries = std::min(queries, page.n_queries - query),
                    .first_head = head,
                    .n_heads = std::min(heads, q_per_kv - head),
                    .query_page = page.query_page(),
                    .first_in_page = static_cast<int32_t>((page.first_pos + query) % kPageTokens),
                    .packed_begin = packed.begin,
                    .packed_end = packed.end,
                    .full_pages = s.full_pages,
                    .packed_pages = s.packed_pages});
}

/// Whether prefill_kernel is worth it for a page's queries: a block of it that is half full.
bool has_many(const kv2::AttendTile& page, const KvShape& shape) {
  return 2 * page.n_queries * shape.q_per_kv() >= kPrefillTiles * prefill_pairs(shape.head_dim);
}

/// Blocks of prefill_kernel for these pages' queries, longest first. Empty where they would leave most of the
/// GPU idle: attend_kernel splits pages among blocks, this one does not.
std::vector<AttendTile> prefill_blocks(std::span<const kv2::AttendTile> pages,
                                       std::span<const SequenceView> sequences, const KvShape& shape,
                                       const Visibility& rule, int n_multiprocessors) {
  std::vector<kv2::AttendTile> many;
  for (const kv2::AttendTile& page : pages)
    if (has_many(page, shape)) many.push_back(page);
  std::stable_sort(many.begin(), many.end(), [](const kv2::AttendTile& a, const kv2::AttendTile& b) {
    return a.query_page() > b.query_page();
  });
  std::vector<AttendTile> tiles;
  for (const kv2::AttendTile& page : many) {
    cut_page(page, sequences[page.sequence], shape, rule, prefill_pairs(shape.head_dim), tiles);
    while (tiles.size() % kPrefillTiles != 0) {
      tiles.push_back(tiles.back());
      tiles.back().n_queries = 0;
    }
  }
  const auto n_blocks = static_cast<int>(tiles.size()) / kPrefillTiles * shape.n_kv_heads;
  return 2 * n_blocks >= n_multiprocessors ? tiles : std::vector<AttendTile>{};
}

}  // namespace

AttendPlan plan_attend(std::span<const SequenceView> sequences, const KvShape& shape, const Visibility& rule,
                       const AttendLimits& limits) {
  AttendPlan plan;
  const std::vector<kv2::AttendTile> pages = cut_tiles(sequences, 1, kPageTokens);
  std::vector<AttendTile> prefill;
  if (limits.prefill != PrefillKernel::None)
    prefill = prefill_blocks(pages, sequences, shape, rule, limits.n_multiprocessors);
  for (const kv2::AttendTile& page : pages) {
    if (!prefill.empty() && has_many(page, shape)) continue;
    cut_page(page, sequences[page.sequence], shape, rule, limits.pairs, plan.tiles);
    plan.max_pages = std::max(plan.max_pages, page.query_page() / kStepPages * kStepPages + kStepPages);
  }
  plan.n_tiles = static_cast<int>(plan.tiles.size());
  plan.pages_each = choose_pages(plan, shape, attend_blocks(shape.head_dim) * limits.n_multiprocessors);
  if (partial_bytes(plan, shape, limits.pairs) > kMaxPartialBytes) plan.pages_each = plan.max_pages;
  plan.n_prefill_blocks = static_cast<int>(prefill.size()) / kPrefillTiles;
  const bool reads_packed = std::any_of(prefill.begin(), prefill.end(),
                                        [](const AttendTile& t) { return t.packed_end > t.packed_begin; });
  plan.prefill_kernel = reads_packed ? limits.prefill : PrefillKernel::Full;
  plan.tiles.insert(plan.tiles.end(), prefill.begin(), prefill.end());
  return plan;
}

}  // namespace kv2::cuda
