// SPDX-License-Identifier: Apache-2.0
// 32 columns of a head's matrix in shared memory, and a warp's product of vectors with them: a lane has one
// output channel. Sums in index order, as everywhere a transform is applied.
#pragma once

namespace kv2::cuda {

template <int D>
struct MatrixSlice {
  static constexpr int kColumns = 32, kStride = kColumns + 1;
  float values[D * kStride];

  /// By the whole block; a barrier before use is the caller's. `transpose`: columns of the transposed matrix.
  __device__ __forceinline__ void load(const float* matrix, int first, bool transpose, int n_threads) {
#pragma unroll 8
    for (int k = threadIdx.x; k < D * kColumns; k += n_threads) {
      const int i = transpose ? k % D : k / kColumns, j = transpose ? k / D : k % kColumns;
      values[i * kStride + j] = __ldg(matrix + (transpose ? (first + j) * D + i : i * D + first + j));
    }
  }
  /// N vectors [N][D] in shared memory, 16-byte aligned: a value of the matrix is read once for all.
  template <int N>
  __device__ __forceinline__ void product(const float (*vectors)[D], int lane, float (&sum)[N]) const {
#pragma unroll
    for (int v = 0; v < N; v++) sum[v] = 0;
#pragma unroll(N == 1 ? 8 : 4)
    for (int i = 0; i < D; i += 4) {
      float w[4];
#pragma unroll
      for (int k = 0; k < 4; k++) w[k] = values[(i + k) * kStride + lane];
#pragma unroll
      for (int v = 0; v < N; v++) {
        const float4 x = *reinterpret_cast<const float4*>(vectors[v] + i);
        sum[v] = fmaf(x.x, w[0], sum[v]);
        sum[v] = fmaf(x.y, w[1], sum[v]);
        sum[v] = fmaf(x.z, w[2], sum[v]);
        sum[v] = fmaf(x.w, w[3], sum[v]);
      }
    }
  }
};

}  // namespace kv2::cuda
