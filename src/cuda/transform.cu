// SPDX-License-Identifier: Apache-2.0
// out = (x - mean)·matrix + add, per head: a block takes kVectors vectors that share a KV head's matrix, a
// thread one output channel of each, so a matrix element is read once for kVectors products. f32, sums in
// index order.
#include "cuda/kernels.h"

namespace kv2::cuda {
namespace {

constexpr int kVectors = 8;

__global__ void transform_kernel(const float* in, float* out, const float* matrix, const float* mean,
                                 const float* add, int n_rows, int n_heads, int q_per_kv, int d,
                                 bool transpose) {
  extern __shared__ float x[];  // [kVectors, d]
  const int kv_head = blockIdx.y;
  const int n_vectors = n_rows * q_per_kv, first = blockIdx.x * kVectors;
  const auto at = [&](int vector) {  // of this KV head -> offset
    const int row = vector / q_per_kv, head = kv_head * q_per_kv + vector % q_per_kv;
    return (static_cast<size_t>(row) * n_heads + head) * d;
  };
  for (int i = threadIdx.x; i < kVectors * d; i += blockDim.x) {
    const int vector = first + i / d, c = i % d;
    float value = 0;
    if (vector < n_vectors) value = in[at(vector) + c] - (mean ? mean[kv_head * d + c] : 0.0f);
    x[i] = value;
  }
  __syncthreads();
  const float* m = matrix + static_cast<size_t>(kv_head) * d * d;
  for (int j = threadIdx.x; j < d; j += blockDim.x) {
    float sum[kVectors] = {};
    for (int i = 0; i < d; i++) {
      const float w = transpose ? m[static_cast<size_t>(j) * d + i] : m[static_cast<size_t>(i) * d + j];
#pragma unroll
      for (int v = 0; v < kVectors; v++) sum[v] = fmaf(x[v * d + i], w, sum[v]);
    }
    const float added = add ? add[kv_head * d + j] : 0.0f;
#pragma unroll
    for (int v = 0; v < kVectors; v++)
      if (first + v < n_vectors) out[at(first + v) + j] = sum[v] + added;
  }
}

}  // namespace

void launch_transform(const float* in, float* out, const float* matrix, const float* mean, const float* add,
                      int n_rows, int n_heads, int n_kv_heads, int head_dim, bool transpose,
                      cudaStream_t stream) {
  const int q_per_kv = n_heads / n_kv_heads;
  const dim3 grid((n_rows * q_per_kv + kVectors - 1) / kVectors, n_kv_heads);
  const int threads = head_dim >= 128 ? 128 : 64;
  transform_kernel<<<grid, threads, kVectors * head_dim * sizeof(float), stream>>>(
      in, out, matrix, mean, add, n_rows, n_heads, q_per_kv, head_dim, transpose);
}

}  // namespace kv2::cuda
