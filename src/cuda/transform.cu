// SPDX-License-Identifier: Apache-2.0
// out = (x - mean)·matrix + add, per head: a block takes kVectors vectors that share a KV head's matrix,
// which comes through shared memory in pieces. A thread has one output channel of four vectors, or several
// such. f32, sums in index order, so a vector's bits do not depend on what is beside it.
#include "cuda/kernels.h"

namespace kv2::cuda {
namespace {

constexpr int kVectors = 8, kThreads = 256, kEach = 4;  // vectors of a thread
/// Rows of the matrix at a time: what leaves shared memory below 48 KiB.
__host__ __device__ constexpr int rows_of_piece(int d) {
  const int rows = (d <= 256 ? 8192 : 6144) / d / 4 * 4;
  return rows < d ? rows : d;
}
constexpr int kMaxItems = 512 * (kVectors / kEach) / kThreads;

__global__ void __launch_bounds__(kThreads)
    transform_kernel(const float* in, float* out, const float* matrix, const float* mean, const float* add,
                     int n_rows, int n_heads, int q_per_kv, int d, bool transpose) {
  extern __shared__ __align__(16) float shared[];
  float* x = shared;                // [d][kVectors]
  float* piece = x + kVectors * d;  // [piece_rows][d + 1], row i of the matrix as it is summed over
  const int kv_head = blockIdx.y, stride = d + 1, piece_rows = rows_of_piece(d);
  const int n_vectors = n_rows * q_per_kv, first = blockIdx.x * kVectors;
  const int n_items = d * (kVectors / kEach);
  const auto at = [&](int vector) {  // of this KV head -> offset
    const int row = vector / q_per_kv, head = kv_head * q_per_kv + vector % q_per_kv;
    return (static_cast<size_t>(row) * n_heads + head) * d;
  };
  for (int i = threadIdx.x; i < kVectors * d; i += kThreads) {
    const int v = i / d, c = i % d;
    float value = 0;
    if (first + v < n_vectors) value = in[at(first + v) + c] - (mean ? mean[kv_head * d + c] : 0.0f);
    x[c * kVectors + v] = value;
  }
  const float* m = matrix + static_cast<size_t>(kv_head) * d * d;
  float sum[kMaxItems][kEach] = {};
  for (int i0 = 0; i0 < d; i0 += piece_rows) {
    const int n = min(piece_rows, d - i0);
    __syncthreads();
#pragma unroll 8
    for (int k = threadIdx.x; k < n * d / 4; k += kThreads) {
      if (transpose) {  // four of i for one output channel
        const int j = k / (n / 4), i = k % (n / 4) * 4;
        const float4 w = __ldg(reinterpret_cast<const float4*>(m + static_cast<size_t>(j) * d + i0 + i));
        piece[i * stride + j] = w.x;
        piece[(i + 1) * stride + j] = w.y;
        piece[(i + 2) * stride + j] = w.z;
        piece[(i + 3) * stride + j] = w.w;
      } else {
        const int i = k / (d / 4), j = k % (d / 4) * 4;
        const float4 w = __ldg(reinterpret_cast<const float4*>(m + static_cast<size_t>(i0 + i) * d + j));
        piece[i * stride + j] = w.x;
        piece[i * stride + j + 1] = w.y;
        piece[i * stride + j + 2] = w.z;
        piece[i * stride + j + 3] = w.w;
      }
    }
    __syncthreads();
#pragma unroll
    for (int item = 0; item < kMaxItems; item++) {
      const int k = threadIdx.x + item * kThreads;
      if (k >= n_items) break;
      const int j = k % d, part = k / d;
#pragma unroll 8
      for (int i = 0; i < n; i++) {
        const float w = piece[i * stride + j];
        const float4 y = *reinterpret_cast<const float4*>(x + (i0 + i) * kVectors + part * kEach);
        sum[item][0] = fmaf(y.x, w, sum[item][0]);
        sum[item][1] = fmaf(y.y, w, sum[item][1]);
        sum[item][2] = fmaf(y.z, w, sum[item][2]);
        sum[item][3] = fmaf(y.w, w, sum[item][3]);
      }
    }
  }
#pragma unroll
  for (int item = 0; item < kMaxItems; item++) {
    const int k = threadIdx.x + item * kThreads;
    if (k >= n_items) break;
    const int j = k % d, part = k / d;
    const float added = add ? add[kv_head * d + j] : 0.0f;
#pragma unroll
    for (int v = 0; v < kEach; v++) {
      const int vector = first + part * kEach + v;
      if (vector < n_vectors) out[at(vector) + j] = sum[item][v] + added;
    }
  }
}

}  // namespace

void launch_transform(const TransformRows& p, cudaStream_t stream) {
  const int q_per_kv = p.n_heads / p.n_kv_heads, d = p.head_dim;
  const dim3 grid((p.n_rows * q_per_kv + kVectors - 1) / kVectors, p.n_kv_heads);
  const size_t shared = sizeof(float) * (kVectors * d + static_cast<size_t>(rows_of_piece(d)) * (d + 1));
  transform_kernel<<<grid, kThreads, shared, stream>>>(p.in, p.out, p.matrix, p.mean, p.add, p.n_rows,
                                                       p.n_heads, q_per_kv, d, p.transpose);
}

}  // namespace kv2::cuda
