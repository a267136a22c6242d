// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/kernels.h"

namespace kv2::cuda {

/// launch_demote where whole fragments fit registers.
bool demotes_fragments(int head_dim, int group);
void launch_demote_fragments(Pool full, Pool packed, const DemotePage* pages, int n_pages, int n_kv_heads,
                             int head_dim, int clip_k, int clip_v, int sides, cudaStream_t stream);

}  // namespace kv2::cuda
