// SPDX-License-Identifier: Apache-2.0
// The launcher of one head dim; a file for each of KV2_CUDA_HEAD_DIMS instantiates it
// (attend_head_dim.cu.in).
#pragma once

#include "cuda/kernels.h"

namespace kv2::cuda {

template <int D>
void launch_attend_for(const AttendArgs& args, int pairs, cudaStream_t stream);

}  // namespace kv2::cuda
