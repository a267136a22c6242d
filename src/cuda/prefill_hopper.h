// SPDX-License-Identifier: Apache-2.0
// The launcher of prefill_hopper.cu, which is compiled for sm_90a alone.
#pragma once

#include "cuda/kernels.h"

namespace kv2::cuda {

inline constexpr int kHopperHeadDim = 128;
/// Blocks of `args` that read packed pages; on compute capability 9.0.
void launch_prefill_hopper(const AttendArgs& args, cudaStream_t stream);

}  // namespace kv2::cuda
