// SPDX-License-Identifier: Apache-2.0
// The largest value of each row (ops/arg_max.h): some blocks a row, whose winners meet in one 64-bit maximum.
#include "cuda/kernels.h"

namespace kv2::cuda {
namespace {

constexpr int kThreads = 512;

/// Larger values have larger keys, of equal ones the one with the smaller index; 0: none.
__device__ unsigned long long key_of(float x, int index) {
  if (!(x > -INFINITY)) return 0;
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 as +0
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(index));
}

__global__ void __launch_bounds__(kThreads)
    arg_max_kernel(const float* rows, int width, unsigned long long* keys) {
  const float* row = rows + static_cast<size_t>(blockIdx.x) * width;
  unsigned long long best = 0;
  for (int i = blockIdx.y * kThreads + threadIdx.x; i < width; i += kThreads * gridDim.y)
    best = max(best, key_of(row[i], i));
  for (int m = 16; m; m >>= 1) best = max(best, __shfl_xor_sync(~0u, best, m));
  if (threadIdx.x % 32 == 0 && best) atomicMax(keys + blockIdx.x, best);
}

}  // namespace

void launch_arg_max(const float* rows, int n_rows, int width, uint64_t* keys, cudaStream_t stream) {
  cudaMemsetAsync(keys, 0, n_rows * sizeof(uint64_t), stream);
  arg_max_kernel<<<dim3(n_rows, n_rows <= 8 ? 16 : 4), kThreads, 0, stream>>>(
      rows, width, reinterpret_cast<unsigned long long*>(keys));
}

}  // namespace kv2::cuda
