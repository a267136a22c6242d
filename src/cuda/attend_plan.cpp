// SPDX-License-Identifier: Apache-2.0
#include "cuda/attend_plan.h"

#include <algorithm>

#include "ops/plan.h"

namespace kv2::cuda {
namespace {

/// Blocks that a multiprocessor should have before runs stay together in one block.
constexpr int kBlocksEach = 16;

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
    plan.max_runs = std::max(plan.max_runs, t.query_page() / kRunPages + 1);
  }
  plan.split = plan.max_runs > 1 && partial_bytes(plan, shape, pairs) <= kMaxPartialBytes &&
               plan.tiles.size() * shape.n_kv_heads < static_cast<size_t>(kBlocksEach) * n_multiprocessors;
  return plan;
}

}  // namespace kv2::cuda
