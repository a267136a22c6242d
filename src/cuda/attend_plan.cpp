// SPDX-License-Identifier: Apache-2.0
#include "cuda/attend_plan.h"

#include <algorithm>
#include <tuple>

#include "ops/plan.h"

namespace kv2::cuda {
namespace {

/// The longest tile is taken to be this much longer at most, so that partial results keep their size for
/// 8,192 tokens of decoding.
constexpr int kStepPages = 128;

/// What a block's time is made of, in packed pages: measured on an H200, head_dim 128 (some 300 cycles each).
constexpr int kFullPageCost = 4, kRunCost = 8, kSegmentCost = 20;

/// Deals the runs of all tiles and KV heads, in this order, to blocks: each block has consecutive ones, and
/// the largest share is as small as can be. Where there are tiles enough, they stay whole.
class Dealer {
 public:
  Dealer(AttendPlan& plan, int n_kv_heads, int n_slots, bool may_cut)
      : plan_(plan),
        n_kv_heads_(n_kv_heads),
        n_slots_(n_slots),
        cuts_(may_cut && static_cast<int64_t>(plan.n_tiles) * n_kv_heads < int64_t{8} * n_slots) {
    for (int i = 0; i < plan.n_tiles; i++) {
      first_.push_back(costs_.size());
      add_costs(plan.tiles[i]);
    }
    first_.push_back(costs_.size());
  }

  void deal() {
    int64_t total = 0;
    for (int i = 0; i < plan_.n_tiles; i++) {
      total += kSegmentCost;
      for (size_t at = first_[i]; at < first_[i + 1]; at++) total += costs_[at];
    }
    total *= n_kv_heads_;
    if (total == 0) return;
    int64_t low = (total + n_slots_ - 1) / n_slots_, high = total;  // `high` suffices
    for (int64_t step = kMaxRunPages; high == total && low + step < total; step *= 2)
      if (blocks(low + step) <= n_slots_) high = low + step;
    while (high - low > std::max<int64_t>(1, low / 128)) {
      const int64_t limit = (low + high) / 2;
      (blocks(limit) <= n_slots_ ? high : low) = limit;
    }
    // few sizes of grids: a step's launches are recorded
    const int each = std::max(1, n_slots_ / 8), used = blocks(high);
    plan_.n_blocks = std::min(n_slots_, (used + each - 1) / each * each);
    const size_t n_items = static_cast<size_t>(plan_.n_tiles) * n_kv_heads_;
    plan_.segments.assign(plan_.n_blocks + n_items, AttendSegment{});
    write(high);
  }

 private:
  void add_costs(const AttendTile& tile) {
    const Runs runs{tile.query_page};
    int sum = 0;
    for (int run = 0; run < runs.count(); run++) {
      const int begin = runs.begin(run), end = runs.end(run);
      const int packed = std::max(0, std::min(end, tile.packed_end) - std::max(begin, tile.packed_begin));
      const int cost = kRunCost + packed + kFullPageCost * (end - begin - packed);
      if (cuts_)
        costs_.push_back(cost);
      else
        sum += cost;
    }
    if (!cuts_) costs_.push_back(sum);
  }
  /// deal(tile, kv_head, cost index, whether a block begins, whether a segment begins) in order.
  template <class Deal>
  void for_each(int64_t limit, const Deal& deal) const {
    int64_t room = 0;
    for (int tile = 0; tile < plan_.n_tiles; tile++)
      for (int head = 0; head < n_kv_heads_; head++)
        for (size_t at = first_[tile]; at < first_[tile + 1]; at++) {
          const bool begins = at == first_[tile], new_block = room < costs_[at] + (begins ? kSegmentCost : 0);
          if (new_block) room = limit;
          room -= costs_[at] + (begins || new_block ? kSegmentCost : 0);
          deal(tile, head, static_cast<int>(at - first_[tile]), new_block, begins || new_block);
        }
  }
  int blocks(int64_t limit) const {
    int n = 0;
    for_each(limit, [&](int, int, int, bool new_block, bool) { n += new_block; });
    return n;
  }
  void write(int64_t limit) {
    int block = -1, at = -1, others = plan_.n_blocks;
    for_each(limit, [&](int tile, int head, int run, bool new_block, bool new_segment) {
      if (new_segment) {
        const int before = at;
        at = new_block ? ++block : others++;
        if (!new_block) plan_.segments[before].next = at;
        const int n_runs = Runs{plan_.tiles[tile].query_page}.count();
        plan_.segments[at] = {plan_.tiles[tile], tile * n_kv_heads_ + head, head, run, n_runs, -1};
        if (run > 0) {
          plan_.segments[before].end_run = run;
          plan_.merges = true;
        }
      }
    });
  }

  AttendPlan& plan_;
  const int n_kv_heads_, n_slots_;
  const bool cuts_;
  std::vector<int64_t> costs_;  // of runs, or of whole tiles
  std::vector<size_t> first_;   // of each tile
};

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

/// What a plan depends on besides the position.
auto but_for_position(const SequenceView& s) {
  return std::tie(s.first_row, s.n_rows, s.full_until, s.full_pages, s.packed_pages);
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
    const int max_pages = page.query_page() / kStepPages * kStepPages + kStepPages;
    plan.max_runs = std::max(plan.max_runs, Runs{max_pages - 1}.count());
  }
  plan.n_tiles = static_cast<int>(plan.tiles.size());
  const int blocks_each =
      limits.blocks_each > 0 ? limits.blocks_each : attend_blocks(shape.head_dim, limits.pairs);
  Dealer(plan, shape.n_kv_heads, blocks_each * limits.n_multiprocessors,
         partial_bytes(plan, shape, limits.pairs) <= kMaxPartialBytes)
      .deal();
  plan.n_prefill_blocks = static_cast<int>(prefill.size()) / kPrefillTiles;
  const bool reads_packed = std::any_of(prefill.begin(), prefill.end(),
                                        [](const AttendTile& t) { return t.packed_end > t.packed_begin; });
  plan.prefill_kernel = reads_packed ? limits.prefill : PrefillKernel::Full;
  plan.tiles.insert(plan.tiles.end(), prefill.begin(), prefill.end());
  return plan;
}

/// Whether the plan serves these sequences, now that each query has its new place in its page.
bool AttendPlanner::go_on(std::span<const SequenceView> sequences) {
  const auto reads_the_same = [](const SequenceView& a, const SequenceView& b) {
    return but_for_position(a) == but_for_position(b) && a.n_rows == 1 &&
           a.first_pos / kPageTokens == b.first_pos / kPageTokens &&
           (a.first_pos < a.full_until) == (b.first_pos < b.full_until);
  };
  if (!std::equal(sequences.begin(), sequences.end(), sequences_.begin(), sequences_.end(), reads_the_same))
    return false;
  for (size_t i = 0; i < sequences.size(); i++)
    if (sequences[i].first_row != static_cast<int>(i)) return false;
  const auto set = [&](AttendTile& tile) {
    tile.first_in_page = static_cast<int32_t>(sequences[tile.first_row].first_pos % kPageTokens);
  };
  for (AttendTile& tile : plan_.tiles) set(tile);
  for (AttendSegment& segment : plan_.segments)
    if (segment.end_run > 0) set(segment.tile);
  return true;
}

const AttendPlan& AttendPlanner::plan(std::span<const SequenceView> sequences, const KvShape& shape,
                                      const Visibility& rule, const AttendLimits& limits) {
  const auto same = [](const SequenceView& a, const SequenceView& b) {
    return a.first_pos == b.first_pos && but_for_position(a) == but_for_position(b);
  };
  const bool same_kind =
      std::tie(shape.n_heads, shape.n_kv_heads, shape.head_dim) ==
          std::tie(shape_.n_heads, shape_.n_kv_heads, shape_.head_dim) &&
      std::tie(rule.sink_pages, rule.recent_pages, rule.quantized) ==
          std::tie(rule_.sink_pages, rule_.recent_pages, rule_.quantized) &&
      std::tie(limits.pairs, limits.n_multiprocessors, limits.prefill, limits.blocks_each) ==
          std::tie(limits_.pairs, limits_.n_multiprocessors, limits_.prefill, limits_.blocks_each);
  if (same_kind && std::equal(sequences.begin(), sequences.end(), sequences_.begin(), sequences_.end(), same))
    return plan_;
  if (!same_kind || !go_on(sequences)) {
    plan_ = plan_attend(sequences, shape, rule, limits);
    shape_ = shape, rule_ = rule, limits_ = limits;
  }
  sequences_.assign(sequences.begin(), sequences.end());
  plan_.version = ++version_;
  return plan_;
}

}  // namespace kv2::cuda
