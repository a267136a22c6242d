// SPDX-License-Identifier: Apache-2.0
// The running softmax of a consumer's warp in prefill_hopper.cu: Sums of the other kernels with pairs as
// rows. Lane (g, t) has pairs g and g + 8, of each page the tokens that two lanes have there, and channels 8j
// + 2t, + 1 of the output.
#pragma once

#include "cuda/attend_sums.cuh"
#include "cuda/hopper_stage.cuh"

namespace kv2::cuda::hopper {

using namespace attention;

/// The running softmax of a warp's tile, as Sums has it.
struct RowSums {
  float o[64];                   // [8-channel tile][row of two][e]; times 4^(tile % 4) of 16-channel tiles
  float m[2], l[2][2], z[2][2];  // [row][8 tokens]

  __device__ void start() {
#pragma unroll
    for (int i = 0; i < 64; i++) o[i] = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      m[r] = kLowest;
      l[r][0] = l[r][1] = z[r][0] = z[r][1] = 0;
    }
  }
  __device__ __forceinline__ void raise(const float (&largest)[2], float (&worth)[2]) {
    const bool grew = largest[0] > m[0] + kSlack || largest[1] > m[1] + kSlack;
    if (__any_sync(~0u, grew)) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float n = largest[r] > m[r] + kSlack ? largest[r] : m[r], f = exp2_fast(m[r] - n);
        m[r] = n;
#pragma unroll
        for (int h = 0; h < 2; h++) {
          l[r][h] *= f;
          z[r][h] *= f;
        }
#pragma unroll
        for (int j = 0; j < 16; j++) {
          o[4 * j + 2 * r] *= f;
          o[4 * j + 2 * r + 1] *= f;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) worth[r] = exp2_fast(largest[r] - m[r]);
  }
  __device__ void close() {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      l[r][0] += l[r][1];
      z[r][0] += z[r][1];
#pragma unroll
      for (int mask = 1; mask < 4; mask <<= 1) {
        l[r][0] += __shfl_xor_sync(~0u, l[r][0], mask);
        z[r][0] += __shfl_xor_sync(~0u, z[r][0], mask);
      }
#pragma unroll
      for (int j = 0; j < 16; j++)
#pragma unroll
        for (int e = 0; e < 2; e++)
          o[4 * j + 2 * r + e] = fmaf(o[4 * j + 2 * r + e], quarter(S::v_field(j / 2)), z[r][0]);
    }
  }
};

/// The largest of a row; finite even where every token is hidden.
__device__ __forceinline__ float over_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
  return fmaxf(x, kLowest);
}

}  // namespace kv2::cuda::hopper
