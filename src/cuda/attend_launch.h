// SPDX-License-Identifier: Apache-2.0
// The launchers of one head dim; two files for each of KV2_CUDA_HEAD_DIMS instantiate them
// (attend_head_dim.cu.in, prefill_head_dim.cu.in).
#pragma once

#include "cuda/kernels.h"

namespace kv2::cuda {

template <int D>
void launch_attend_for(const AttendArgs& args, int pairs, cudaStream_t stream);

template <int D>
void launch_attend_channels_for(const AttendArgs& args, int pairs, cudaStream_t stream);

template <int D>
void launch_prefill_for(const AttendArgs& args, cudaStream_t stream);
template <int D>
size_t prefill_shared_bytes();

}  // namespace kv2::cuda
