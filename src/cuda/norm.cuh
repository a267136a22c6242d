// SPDX-License-Identifier: Apache-2.0
// Sums of a warp and of a block, in an order that the launch alone decides, and the factor of an RMS norm.
#pragma once

namespace kv2::cuda {

__device__ __forceinline__ float warp_sum(float x) {
  for (int m = 16; m; m >>= 1) x += __shfl_xor_sync(~0u, x, m);
  return x;
}
/// In every thread; `shared` has a float for each warp.
template <int kThreads>
__device__ __forceinline__ float block_sum(float x, float* shared) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kThreads / 32; w++) sum += shared[w];
  return sum;
}
__device__ __forceinline__ float norm_factor(float sum_of_squares, int width, float epsilon) {
  return __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(sum_of_squares, static_cast<float>(width)) + epsilon));
}

}  // namespace kv2::cuda
