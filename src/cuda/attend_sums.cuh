// SPDX-License-Identifier: Apache-2.0
// One warp's running softmax: a logit that none exceeds by much, the sums of weights, of weighted values and
// of weighted offsets. Lane (g, t) has pair 4·nt + t of n-tile nt, and of the output channels 16i + g and 16i
// + g + 8; sums of weights and offsets are those of the lane's own tokens until the warp closes. Columns of
// an mma never mix, and no lane's result depends on what other columns hold.
#pragma once

#include "cuda/attend_shape.cuh"

namespace kv2::cuda::attention {

/// log2 by which a logit may exceed the one that sums are relative to, so that these are seldom rescaled.
inline constexpr float kSlack = 8;

/// `kGroups`: of channels that V's offsets have.
template <int D, int NT, int kGroups = Shape<D>::kGroups>
struct Sums {
  using S = Shape<D>;
  float o[NT][S::kTiles][2];  // times 4^(tile % 4) where the tile belongs to a quad; see Shape::v_field
  float m[NT], l[NT], z[NT][kGroups];

  __device__ void start() {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
      for (int i = 0; i < S::kTiles; i++) o[nt][i][0] = o[nt][i][1] = 0;
#pragma unroll
      for (int s = 0; s < kGroups; s++) z[nt][s] = 0;
      m[nt] = kLowest, l[nt] = 0;
    }
  }

  /// Takes new logits into account, whose largest are given, and returns what weights relative to these are
  /// worth: 2^kSlack at most, so that sums are seldom rescaled.
  __device__ void raise(const float (&largest)[NT], float (&worth)[NT]) {
    bool grew = false;
#pragma unroll
    for (int nt = 0; nt < NT; nt++) grew = grew || largest[nt] > m[nt] + kSlack;
    if (__any_sync(~0u, grew)) {
#pragma unroll
      for (int nt = 0; nt < NT; nt++) {
        const float n = largest[nt] > m[nt] + kSlack ? largest[nt] : m[nt], r = exp2_fast(m[nt] - n);
        m[nt] = n;
        l[nt] *= r;
#pragma unroll
        for (int s = 0; s < kGroups; s++) z[nt][s] *= r;
#pragma unroll
        for (int i = 0; i < S::kTiles; i++) {
          o[nt][i][0] *= r;
          o[nt][i][1] *= r;
        }
      }
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++) worth[nt] = exp2_fast(largest[nt] - m[nt]);
  }

  /// After the last page: `o` and `l` become those of all tokens, `o` without its powers of four.
  __device__ void close() {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
      for (int mask = 4; mask < 32; mask <<= 1) {
        l[nt] += __shfl_xor_sync(~0u, l[nt], mask);
#pragma unroll
        for (int s = 0; s < kGroups; s++) z[nt][s] += __shfl_xor_sync(~0u, z[nt][s], mask);
      }
#pragma unroll
      for (int i = 0; i < S::kTiles; i++)
#pragma unroll
        for (int r = 0; r < 2; r++)
          o[nt][i][r] = fmaf(o[nt][i][r], quarter(S::v_field(i)), z[nt][16 * i * kGroups / D]);
    }
  }
};

/// The largest of the lane's and of all tokens; finite even where every token is hidden.
__device__ inline float over_tokens(float x) {
#pragma unroll
  for (int mask = 4; mask < 32; mask <<= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
  return fmaxf(x, kLowest);
}

/// A logit in log2 under the soft cap.
__device__ inline float capped(const AttendArgs& args, float x) {
  const float cap = args.soft_cap * kLog2e;
  return cap * tanhf(x * __frcp_rn(cap));
}

/// A page's logits in units, s[nt][token of the lane], become weights relative to their largest; `worth`:
/// what those are worth to the sums, which have them as well then.
template <bool kCapped, int NT, class WarpSums>
__device__ __forceinline__ void weights_of_logits(const AttendArgs& args, const float (&unit)[NT],
                                                  float (&s)[NT][8], WarpSums& sums, float (&worth)[NT]) {
  float largest[NT];
#pragma unroll
  for (int nt = 0; nt < NT; nt++) {
    if constexpr (kCapped)
#pragma unroll
      for (int i = 0; i < 8; i++) s[nt][i] = capped(args, s[nt][i] * unit[nt]);
    float x = fmaxf(s[nt][0], s[nt][1]);
#pragma unroll
    for (int i = 2; i < 8; i++) x = fmaxf(x, s[nt][i]);
    largest[nt] = over_tokens(x);
    if constexpr (!kCapped) largest[nt] *= unit[nt];
  }
  sums.raise(largest, worth);
#pragma unroll
  for (int nt = 0; nt < NT; nt++) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      s[nt][i] = exp2_fast(fmaf(s[nt][i], kCapped ? 1.0f : unit[nt], -largest[nt]));
      sum += s[nt][i];
    }
    sums.l[nt] = fmaf(sum, worth[nt], sums.l[nt]);
  }
}

/// o[2], a tile of 16 channels, += what the F-th codes of both steps' words and weights come to.
template <int F>
__device__ __forceinline__ void add_weighted_codes(float (&o)[2], const uint4& w0, const uint4& w1,
                                                   const uint32_t (&p)[4], float worth) {
  int c[4] = {};
  mma_codes<Digits::Unsigned>(c, field<F>(w0.x), field<F>(w0.y), field<F>(w0.z), field<F>(w0.w), p[0], p[1]);
  mma_codes<Digits::Unsigned>(c, field<F>(w1.x), field<F>(w1.y), field<F>(w1.z), field<F>(w1.w), p[2], p[3]);
  o[0] = fmaf(static_cast<float>(c[0] * 256 + c[1]), worth, o[0]);
  o[1] = fmaf(static_cast<float>(c[2] * 256 + c[3]), worth, o[1]);
}

}  // namespace kv2::cuda::attention
