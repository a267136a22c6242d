// SPDX-License-Identifier: Apache-2.0
// Where a value of a linear's input goes once it is rounded (kernels.h, LinearInputs). Whoever makes the
// input last writes it there beside its float.
#pragma once

#include <cuda_bf16.h>

#include "cuda/kernels.h"

namespace kv2::cuda {

/// Index in halves of (row, k) among B fragments of m16n8k16 for `columns` rows: steps of 16 k, in each a
/// row's four lanes, two words of two halves.
__device__ __forceinline__ size_t input_fragment_at(int columns, int row, int k) {
  const int in_step = k % 16;
  const size_t lane = (static_cast<size_t>(k / 16) * columns + row) * 4 + in_step % 8 / 2;
  return lane * 4 + in_step / 8 * 2 + in_step % 2;
}

__device__ __forceinline__ void store_input(const LinearInputs& to, int row, int k, float x) {
  if (!to.memory) return;
  const size_t at =
      to.columns ? input_fragment_at(to.columns, row, k) : static_cast<size_t>(row) * to.padded + k;
  static_cast<__nv_bfloat16*>(to.memory)[at] = __float2bfloat16_rn(x);
}
/// Four from k on, a multiple of 4.
__device__ __forceinline__ void store_input4(const LinearInputs& to, int row, int k, float4 x) {
  if (!to.memory) return;
  const __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y), high = __floats2bfloat162_rn(x.z, x.w);
  auto* memory = static_cast<__nv_bfloat16*>(to.memory);
  if (to.columns) {  // k and k + 2 are neighbouring lanes
    const size_t at = input_fragment_at(to.columns, row, k);
    *reinterpret_cast<__nv_bfloat162*>(memory + at) = low;
    *reinterpret_cast<__nv_bfloat162*>(memory + at + 4) = high;
  } else {
    auto* at = reinterpret_cast<__nv_bfloat162*>(memory + static_cast<size_t>(row) * to.padded + k);
    at[0] = low;
    at[1] = high;
  }
}

}  // namespace kv2::cuda
