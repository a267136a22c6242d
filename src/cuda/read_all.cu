// SPDX-License-Identifier: Apache-2.0
// Reads memory and does nothing else: the bandwidth that other kernels are measured against.
#include <algorithm>

#include "cuda/kernels.h"

namespace kv2::cuda {
namespace {

constexpr int kThreads = 256;
constexpr size_t kMostBlocks = 132 * 16;

__global__ void __launch_bounds__(kThreads) read_all_kernel(const uint4* x, size_t n, uint32_t* out) {
  uint32_t sum = 0;
  const size_t step = size_t(gridDim.x) * kThreads;
  size_t i = blockIdx.x * size_t(kThreads) + threadIdx.x;
  for (; i + 3 * step < n; i += 4 * step) {
    const uint4 a = __ldcs(x + i), b = __ldcs(x + i + step), c = __ldcs(x + i + 2 * step),
                d = __ldcs(x + i + 3 * step);
    sum += a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  for (; i < n; i += step) {
    const uint4 a = __ldcs(x + i);
    sum += a.x ^ a.y ^ a.z ^ a.w;
  }
  if (sum == 0x12345678) *out = sum;  // so that no read can be left out
}

}  // namespace

void launch_read_all(const void* memory, size_t bytes, uint32_t* out, cudaStream_t stream) {
  const size_t n = bytes / sizeof(uint4);
  const size_t blocks = std::clamp<size_t>(n / (4 * kThreads), 1, kMostBlocks);
  read_all_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(static_cast<const uint4*>(memory),
                                                                          n, out);
}

}  // namespace kv2::cuda
