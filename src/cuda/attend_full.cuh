// SPDX-License-Identifier: Apache-2.0
// Full pages in attention, 16 tokens at a time: bf16 is the A operand, and a query or a softmax weight is two
// columns of B, the value rounded to bf16 and what the rounding lost. Lane (g, t) has tokens g and g + 8.
#pragma once

#include "cuda/attend_sums.cuh"

namespace kv2::cuda::attention {

/// A value rounded, or what the rounding lost.
__device__ inline uint32_t split_bf16(float a, float b, bool lower) {
  __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
  if (lower) h = __floats2bfloat162_rn(a - __low2float(h), b - __high2float(h));
  return *reinterpret_cast<const uint32_t*>(&h);
}

/// B fragment of channel tile i of a query; 0 where it is absent.
__device__ inline uint2 q_fragment(const float* row, int i, bool here) {
  const int lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
  float2 a = *reinterpret_cast<const float2*>(row + 16 * i + 2 * t),
         b = *reinterpret_cast<const float2*>(row + 16 * i + 2 * t + 8);
  if (!here) a = b = float2{0.0f, 0.0f};
  return {split_bf16(a.x, a.y, g & 1), split_bf16(b.x, b.y, g & 1)};
}

template <int D, int NT, bool kCapped, class WarpSums = Sums<D, NT>>
struct FullPages {
  using S = Shape<D>;
  const AttendArgs& args;
  const AttendTile& tile;
  const int lane, g, t;

  __device__ FullPages(const AttendArgs& a, const AttendTile& ti)
      : args(a), tile(ti), lane(threadIdx.x % 32), g(lane >> 2), t(lane & 3) {}

  __device__ __forceinline__ uint4 fragment(const unsigned char* page, int i, int gap) const {
    return *reinterpret_cast<const uint4*>(page + (i * 32 + lane) * 16 + (2 * i < S::kTiles ? 0 : gap));
  }

  /// Softmax weights of the `tile16`-th 16 tokens of a full page as B fragments, relative to their own
  /// maximum, and what those are worth. `own`: the page of the queries; keys past a query are hidden from it.
  /// `q(nt, i)`: the queries' fragment of channel tile i. `gap`: bytes between the halves of the tokens'
  /// rows.
  template <class Q>
  __device__ __forceinline__ void keys(const unsigned char* page, int tile16, bool own, const Q& q,
                                       WarpSums& sums, uint32_t (&p)[NT][2], float (&worth)[NT],
                                       int gap = 0) const {
    float c[NT][4] = {};
#pragma unroll
    for (int i = 0; i < S::kTiles; i++) {
      const uint4 a = fragment(page, i, gap);
#pragma unroll
      for (int nt = 0; nt < NT; nt++) {
        const uint2 b = q(nt, i);
        mma_bf16(c[nt], a, b.x, b.y);
      }
    }
    float s[NT][2], largest[NT];
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      const int query = (4 * nt + t) / tile.n_heads;
      const int last = own ? tile.first_in_page + min(query, tile.n_queries - 1) : kPage;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        s[nt][r] = (c[nt][2 * r] + c[nt][2 * r + 1]) * (args.softmax_scale * kLog2e);
        if constexpr (kCapped) s[nt][r] = capped(args, s[nt][r]);
        if (tile16 * 16 + g + 8 * r > last) s[nt][r] = -INFINITY;
      }
      largest[nt] = over_tokens(fmaxf(s[nt][0], s[nt][1]));
    }
    sums.raise(largest, worth);
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      float sum = 0;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float e = exp2_fast(s[nt][r] - largest[nt]);
        sum += e;
        const float rounded = __bfloat162float(__float2bfloat16_rn(e));
        p[nt][r] = transpose8x8(split_bf16(rounded, e - rounded, false));
      }
      sums.l[nt] = fmaf(sum, worth[nt], sums.l[nt]);
    }
  }

  /// Rows past the last query of the page `own` may hold anything: they count as zero.
  __device__ __forceinline__ void values(const unsigned char* page, int tile16, bool own,
                                         const uint32_t (&p)[NT][2], const float (&worth)[NT], WarpSums& sums,
                                         int gap = 0) const {
    uint32_t near = ~0u, far = ~0u;
    if (own) {
      const int last_row = tile.first_in_page + tile.n_queries - 1;
      const auto mask = [&](int token) {
        return (token <= last_row ? 0x0000ffffu : 0u) | (token + 1 <= last_row ? 0xffff0000u : 0u);
      };
      near = mask(tile16 * 16 + 2 * t);
      far = mask(tile16 * 16 + 2 * t + 8);
    }
#pragma unroll
    for (int i = 0; i < S::kTiles; i++) {
      uint4 a = fragment(page, i, gap);
      a.x &= near, a.y &= near, a.z &= far, a.w &= far;
#pragma unroll
      for (int nt = 0; nt < NT; nt++) {
        float c[4] = {};
        mma_bf16(c, a, p[nt][0], p[nt][1]);
        const float units = worth[nt] * static_cast<float>(1 << (2 * S::v_field(i)));
        sums.o[nt][i][0] = fmaf(c[0] + c[1], units, sums.o[nt][i][0]);
        sums.o[nt][i][1] = fmaf(c[2] + c[3], units, sums.o[nt][i][1]);
      }
    }
  }
};

}  // namespace kv2::cuda::attention
