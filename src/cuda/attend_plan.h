// SPDX-License-Identifier: Apache-2.0
// Cuts the queries of a call into the tiles of kernels.h and says whether runs of pages go to blocks of their
// own. Host only; neither changes a bit of the result.
#pragma once

#include <span>
#include <vector>

#include "cuda/kernels.h"
#include "ops/params.h"

namespace kv2::cuda {

struct AttendPlan {
  std::vector<AttendTile> tiles;
  int max_runs = 1;
  bool split = false;
};

/// Memory that a plan's partial results may take.
inline constexpr size_t kMaxPartialBytes = size_t{128} << 20;

/// `pairs`: query and head pairs of a tile at most. A tile crosses neither a page nor the sequence's
/// full_until.
AttendPlan plan_attend(std::span<const SequenceView> sequences, const KvShape& shape, const Visibility& rule,
                       int pairs, int n_multiprocessors);

inline size_t partial_bytes(const AttendPlan& plan, const KvShape& shape, int pairs) {
  return plan.tiles.size() * shape.n_kv_heads * plan.max_runs * pairs * (shape.head_dim + 2) * sizeof(float);
}

}  // namespace kv2::cuda
