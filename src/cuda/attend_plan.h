// SPDX-License-Identifier: Apache-2.0
// Cuts the queries of a call into the tiles of kernels.h and deals their runs of pages to blocks. Host only;
// neither changes a bit of the result.
#pragma once

#include <span>
#include <vector>

#include "cuda/kernels.h"
#include "ops/params.h"

namespace kv2::cuda {

struct AttendPlan {
  std::vector<AttendTile> tiles;  // first those of attend_kernel, then prefill_kernel's
  int n_tiles = 0;                // of attend_kernel
  int n_prefill_blocks = 0;
  PrefillKernel prefill_kernel = PrefillKernel::None;
  // attend_kernel's work: every run of its tiles for every KV head. n_blocks that begin a block, then others.
  std::vector<AttendSegment> segments;
  int n_blocks = 0;
  int max_runs = 1;      // that a tile of attend_kernel has at most
  bool merges = false;   // some tile is cut
  uint64_t version = 0;  // of the planner that made it: another where anything else has changed
};

/// Memory that a plan's partial results may take.
inline constexpr size_t kMaxPartialBytes = size_t{128} << 20;

/// Query and head pairs of a tile: 4 or 8.
inline int attend_pairs(const KvShape& shape, bool one_query_each, float soft_cap) {
  return shape.head_dim > 192 || soft_cap > 0 || (one_query_each && shape.q_per_kv() <= 4) ? 4 : 8;
}

struct AttendLimits {
  int pairs;  // query and head pairs of a tile of attend_kernel at most
  int n_multiprocessors;
  PrefillKernel prefill;  // the one to be used where packed pages are read
  int blocks_each = 0;    // that a multiprocessor holds; 0: of attend_kernel
};
/// A tile crosses neither a page nor the sequence's full_until.
AttendPlan plan_attend(std::span<const SequenceView> sequences, const KvShape& shape, const Visibility& rule,
                       const AttendLimits& limits);

/// The plan of the call before where nothing has changed, as all layers of one kind have the same in a step;
/// and its deal where sequences of one query each have only gone on within their pages, as in most steps.
class AttendPlanner {
 public:
  const AttendPlan& plan(std::span<const SequenceView> sequences, const KvShape& shape,
                         const Visibility& rule, const AttendLimits& limits);

 private:
  bool go_on(std::span<const SequenceView> sequences);

  AttendPlan plan_;
  uint64_t version_ = 0;
  std::vector<SequenceView> sequences_;
  KvShape shape_;
  Visibility rule_;
  AttendLimits limits_{};
};

inline size_t partial_bytes(const AttendPlan& plan, const KvShape& shape, int pairs) {
  return static_cast<size_t>(plan.n_tiles) * shape.n_kv_heads * plan.max_runs * pairs * (shape.head_dim + 2) *
         sizeof(float);
}

/// Head dims that this build has attention kernels for, and whether one of them serves this shape; everything
/// else runs in attend_generic.cu.
std::span<const int> attend_head_dims();
bool attend_has(int head_dim, int group);
/// Whether packed pages may be kept in the order of channel_order.h.
bool attend_channels_has(int head_dim);
/// The best kernel for prompts on the current device.
PrefillKernel prefill_kernel_for(int head_dim, int group, float soft_cap);

}  // namespace kv2::cuda
