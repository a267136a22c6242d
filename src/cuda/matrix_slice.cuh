// SPDX-License-Identifier: Apache-2.0
// 32 columns of a head's matrix in shared memory, and a warp's product of a vector with them: a lane has one
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
  /// vector [D] in shared memory, 16-byte aligned.
  __device__ __forceinline__ float product(const float* vector, int lane) const {
    float sum = 0;
#pragma unroll 8
    for (int i = 0; i < D; i += 4) {
      const float4 x = *reinterpret_cast<const float4*>(vector + i);
      sum = fmaf(x.x, values[i * kStride + lane], sum);
      sum = fmaf(x.y, values[(i + 1) * kStride + lane], sum);
      sum = fmaf(x.z, values[(i + 2) * kStride + lane], sum);
      sum = fmaf(x.w, values[(i + 3) * kStride + lane], sum);
    }
    return sum;
  }
};

}  // namespace kv2::cuda
