// SPDX-License-Identifier: Apache-2.0
// A step's arrays from pinned host memory (recorder.h), by a kernel: copy engines and kernels of a graph wait
// for one another longer than this takes.
#include <algorithm>

#include "cuda/kernels.h"

namespace kv2::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) copy_here_kernel(const uint4* host, uint4* device, size_t n) {
  for (size_t i = blockIdx.x * size_t(kThreads) + threadIdx.x; i < n; i += size_t(gridDim.x) * kThreads)
    device[i] = __ldcv(host + i);  // never from a cache: the host writes it anew
}

}  // namespace

void launch_copy_here(const void* host, void* device, size_t bytes, cudaStream_t stream) {
  const size_t n = bytes / sizeof(uint4);
  const size_t blocks = std::clamp<size_t>((n + kThreads - 1) / kThreads, 1, 128);
  copy_here_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(static_cast<const uint4*>(host),
                                                                           static_cast<uint4*>(device), n);
}

}  // namespace kv2::cuda
