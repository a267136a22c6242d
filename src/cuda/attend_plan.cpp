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

}  // namespace

AttendPlan plan_attend(std::span<const SequenceView> sequences, const KvShape& shape, const Visibility& rule,
                       int pairs, int n_multiprocessors) {
  AttendPlan plan;
  const int q_per_kv = shape.q_per_kv(), heads = std::min(q_per_kv, pairs);
  for (const kv2::AttendTile& t : cut_tiles(sequences, 1, std::max(1, pairs / q_per_kv))) {
    const SequenceView& s = sequences[t.sequence];
    const PageRange packed = t.packed_pages(rule);
    for (int head = 0; head < q_per_kv; head += heads)
      plan.tiles.push_back({.first_row = t.first_row,
                            .n_queries = t.n_queries,
                            .first_head = head,
                            .n_heads = std::min(heads, q_per_kv - head),
                            .query_page = t.query_page(),
                            .first_in_page = static_cast<int32_t>(t.first_pos % kPageTokens),
                            .packed_begin = packed.begin,
                            .packed_end = packed.end,
                            .full_pages = s.full_pages,
                            .packed_pages = s.packed_pages});
    plan.max_pages = std::max(plan.max_pages, t.query_page() / kStepPages * kStepPages + kStepPages);
  }
  plan.pages_each = choose_pages(plan, shape, attend_blocks(shape.head_dim) * n_multiprocessors);
  if (partial_bytes(plan, shape, pairs) > kMaxPartialBytes) plan.pages_each = plan.max_pages;
  return plan;
}

}  // namespace kv2::cuda
