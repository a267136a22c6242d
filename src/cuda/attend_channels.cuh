// SPDX-License-Identifier: Apache-2.0
// Packed pages with keys coded per channel in attention (channel_order.h). As in attend_packed.cuh codes are
// the A operand of mma on bytes and B are digits, column 2p the upper and 2p + 1 the lower ones of pair p.
// What differs is where scales go:
//
//   logit    = norm·(Σ_c (q_c·scale_c)·code_c + Σ_c q_c·offset_c): scales belong to channels and 32 tokens,
//   so
//              a page's two groups have digits of their own, made of q·scale by the two lanes of a pair, half
//              of the channels each. Offsets are halves, which tensor cores multiply exactly with q as the
//              sum of two halves.
//   output   = Σ_t (e_t·scale_t)·code_t + Σ_t e_t·offset_t for each group of 32 channels
//
// Digits are of a fixed step that a group's largest product (K) or a page's largest scale (V) gives: nothing
// depends on other pages or columns. Lane (g, t) has tokens 4g..4g+3 and 32 + 4g..+3 of a page.
#pragma once

#include "cuda/attend_sums.cuh"
#include "cuda/channel_order.h"
#include "cuda/fixed_point.cuh"

namespace kv2::cuda::attention {

template <int D, int NT, bool kCapped>
struct ChannelPages {
  using S = Shape<D>;
  static constexpr int kHeadDim = D, kNT = NT;
  static constexpr bool kIsCapped = kCapped;
  static constexpr int kSteps = S::kSteps, kGroups = D / kChannelGroup;  // of V
  static constexpr int kCodes = 16 * D, kHead = 24 * D, kNorms = kPage * 4;
  // A page comes in two pieces, K with the norms behind it, then V; tiles of full pages in halves.
  static constexpr int kPieces = 2, kHalves = 2, kStages = 3, kStageBytes = kHead + kNorms;
  static_assert(kSteps % 2 == 0 && S::kFullTile / kHalves <= kStageBytes && kStageBytes % 128 == 0);
  /// Queries as B fragments of m16n8k16 on halves, column 2p the value rounded, 2p + 1 what that lost.
  struct Queries {
    uint2 q[NT][S::kTiles][32];
  };
  using WarpSums = Sums<D, NT, kGroups>;

  const AttendArgs& args;
  const Queries* queries = nullptr;
  const int lane, g, t;
  float q[NT]
         [4 * kSteps];  // of pair g / 2: channels 32j + 16(g % 2) + 4t..+3, in units that make them < 2^14
  float unit[NT];       // of this lane's pair in log2

  __device__ explicit ChannelPages(const AttendArgs& a)
      : args(a), lane(threadIdx.x % 32), g(lane >> 2), t(lane & 3) {}

  /// By all warps of a block; `shared` can be read after a barrier.
  __device__ void prepare(const float (*rows)[D + 16], int n_pairs, Queries& shared) {
    const int w = threadIdx.x / 32, half = g & 1;
    queries = &shared;
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      const int pair = 4 * nt + (g >> 1);
      const float* row = rows[pair];
      const bool here = pair < n_pairs;
      float largest = 0, sum = 0;
#pragma unroll
      for (int j = 0; j < kSteps; j++) {
        const float4 x = *reinterpret_cast<const float4*>(row + 32 * j + 16 * half + 4 * t);
        q[nt][4 * j] = x.x, q[nt][4 * j + 1] = x.y, q[nt][4 * j + 2] = x.z, q[nt][4 * j + 3] = x.w;
        largest = fmaxf(largest, fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))));
        sum += (x.x + x.y) + (x.z + x.w);
      }
#pragma unroll
      for (int mask = 1; mask < 8; mask <<= 1) {  // lanes of a pair
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
        sum += __shfl_xor_sync(~0u, sum, mask);
      }
      const bool finite = largest < 3e38f && fabsf(sum) < INFINITY,
                 some = here && finite && largest > 0x1p-100f;
      const int exponent = some ? static_cast<int>(__float_as_uint(largest) >> 23) - 127 : 13;
      const float up = some ? pow2(13 - exponent) : 0.0f;
#pragma unroll
      for (int i = 0; i < 4 * kSteps; i++) q[nt][i] = some ? q[nt][i] * up : 0.0f;
      unit[nt] = __shfl_sync(~0u, pow2(exponent - 13) * (args.softmax_scale * kLog2e), 8 * t);
      for (int i = w; i < S::kTiles; i += kWarps) {
        const float* tile = row + 16 * i + 2 * t;
        const float2 a = *reinterpret_cast<const float2*>(tile),
                     b = *reinterpret_cast<const float2*>(tile + 8);
        const bool is_nan = here && !finite;
        shared.q[nt][i][lane] = {split_half(a.x, a.y, up, is_nan), split_half(b.x, b.y, up, is_nan)};
      }
    }
  }
  /// Values in units, rounded to halves, or what that lost.
  __device__ uint32_t split_half(float a, float b, float up, bool is_nan) const {
    a = is_nan ? NAN : up > 0 ? a * up : 0.0f;
    b = is_nan ? NAN : up > 0 ? b * up : 0.0f;
    __half2 h = __floats2half2_rn(a, b);
    if (g & 1) h = __floats2half2_rn(a - __low2float(h), b - __high2float(h));
    return *reinterpret_cast<const uint32_t*>(&h);
  }

  /// Σ q·offset of both groups of tokens, in units.
  __device__ __forceinline__ void multiply_offsets(const unsigned char* head, float (&sum)[NT][2]) const {
    const auto* offsets = reinterpret_cast<const uint4*>(head + kCodes + 4 * D);
    float c[NT][4] = {};
#pragma unroll
    for (int i = 0; i < S::kTiles; i++) {
      const uint4 a = offsets[4 * i + t];
#pragma unroll
      for (int nt = 0; nt < NT; nt++) {
        const uint2 b = queries->q[nt][i][lane];
        mma_half(c[nt], a, b.x, b.y);
      }
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      sum[nt][0] = c[nt][0] + c[nt][1];
      sum[nt][1] = c[nt][2] + c[nt][3];
    }
  }

  /// B fragments of q·scale for one group of tokens, and their step for this lane's pair.
  template <int kGroupAt>
  __device__ __forceinline__ float make_digits(const unsigned char* head, int nt,
                                               uint32_t (&b)[2 * kSteps]) const {
    constexpr float kTop = 32639.0f;              // 127·256 + 127
    constexpr float kMagic = 0x1.8p23f + 128.0f;  // a float's lowest 16 bits are the integer then, plus 128
    const int half = g & 1;
    const auto* scales = reinterpret_cast<const uint4*>(head + kCodes) + kGroupAt * 4 * kSteps;
    float v[4 * kSteps], largest = 0x1p-60f;
#pragma unroll
    for (int a = 0; a < kSteps / 2; a++) {
      const uint4 words = scales[a * 8 + half * 4 + t];
      const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const float2 scale = __half22float2(*reinterpret_cast<const __half2*>(&word[k]));
        v[8 * a + 2 * k] = q[nt][8 * a + 2 * k] * scale.x;
        v[8 * a + 2 * k + 1] = q[nt][8 * a + 2 * k + 1] * scale.y;
        largest = fmaxf(largest, fmaxf(fabsf(v[8 * a + 2 * k]), fabsf(v[8 * a + 2 * k + 1])));
      }
    }
#pragma unroll
    for (int mask = 1; mask < 8; mask <<= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
    const float inverse = kTop * reciprocal_fast(largest);
    // this lane's column holds its own half of the channels and the other lane's
    const uint32_t keep_select = half ? 0x5410 : 0x7632, send_select = half ? 0x7632 : 0x5410;
    const uint32_t sign = half ? 0x80808080u : 0u;  // lower digits minus 128
#pragma unroll
    for (int j = 0; j < kSteps; j++) {
      uint32_t x[4];
#pragma unroll
      for (int k = 0; k < 4; k++) x[k] = __float_as_uint(fmaf(v[4 * j + k], inverse, kMagic));
      const uint32_t first = __byte_perm(x[0], x[1], 0x5140), second = __byte_perm(x[2], x[3], 0x5140);
      const uint32_t keep = __byte_perm(first, second, keep_select) ^ sign;
      const uint32_t other = __shfl_xor_sync(~0u, __byte_perm(first, second, send_select), 4) ^ sign;
      b[2 * j] = half ? other : keep;
      b[2 * j + 1] = half ? keep : other;
    }
    return __shfl_sync(~0u, largest * (1.0f / kTop), 8 * t);
  }

  /// Logits of one group of tokens in units, s[nt][2·tile + r].
  template <int kGroupAt>
  __device__ __forceinline__ void add_logits(float (&s)[NT][8], const unsigned char* head,
                                             const float (&offsets)[NT][2]) const {
    uint32_t b[NT][2 * kSteps];
    float step[NT];
#pragma unroll
    for (int nt = 0; nt < NT; nt++) step[nt] = make_digits<kGroupAt>(head, nt, b[nt]);
    int c[NT][2][4] = {};
#pragma unroll
    for (int i = 0; i < kSteps; i++) {
      const uint4 w = reinterpret_cast<const uint4*>(head)[i * 32 + lane];
#pragma unroll
      for (int nt = 0; nt < NT; nt++) {
        const uint32_t b0 = b[nt][2 * i], b1 = b[nt][2 * i + 1];
        constexpr int kF = 2 * kGroupAt;
        mma_codes<Digits::Signed>(c[nt][0], field<kF>(w.x), field<kF>(w.y), field<kF>(w.z), field<kF>(w.w),
                                  b0, b1);
        mma_codes<Digits::Signed>(c[nt][1], field<kF + 1>(w.x), field<kF + 1>(w.y), field<kF + 1>(w.z),
                                  field<kF + 1>(w.w), b0, b1);
      }
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
      for (int f = 0; f < 2; f++) {
        const int tile = 2 * kGroupAt + f;
        const float factor = step[nt] * quarter(tile);
#pragma unroll
        for (int r = 0; r < 2; r++)
          s[nt][2 * tile + r] = fmaf(static_cast<float>(c[nt][f][2 * r] * 256 + c[nt][f][2 * r + 1]), factor,
                                     offsets[nt][kGroupAt]);
      }
  }

  /// Weights relative to the page's largest logit, and what those are worth; `piece`: K's head, then norms.
  __device__ __forceinline__ void keys(const unsigned char* piece, WarpSums& sums, float (&e)[NT][8],
                                       float (&worth)[NT]) const {
    float offsets[NT][2];
    multiply_offsets(piece, offsets);
    add_logits<0>(e, piece, offsets);
    add_logits<1>(e, piece, offsets);
    if (args.channels.norms) {
      const auto* norms = reinterpret_cast<const float4*>(piece + kHead);
      const float4 a = norms[g], b = norms[8 + g];
      const float norm[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
      for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int i = 0; i < 8; i++) e[nt][i] *= norm[i];
    }
    weights_of_logits<kCapped>(args, unit, e, sums, worth);
  }

  /// o[nt][tile] += what codes·weights come to, from both steps' words.
  template <int F>
  __device__ __forceinline__ void add_tile(WarpSums& sums, int tile, const uint4& w0, const uint4& w1,
                                           const uint32_t (&p)[NT][4], const float (&worth)[NT]) const {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) add_weighted_codes<F>(sums.o[nt][tile], w0, w1, p[nt], worth[nt]);
  }

  /// Sums over one group of channels; `e` is in units of weights, `worth` what e and a unit are worth.
  template <int kGroupAt>
  __device__ __forceinline__ void add_group(WarpSums& sums, const unsigned char* head,
                                            const float (&e)[NT][8], const float (&worth)[NT]) const {
    const auto* params = reinterpret_cast<const uint4*>(head + kCodes) + kGroupAt * 16 + g;
    __half2 scales[4], offsets[4];
    *reinterpret_cast<uint4*>(scales) = params[0];
    *reinterpret_cast<uint4*>(offsets) = params[8];
    uint32_t p[NT][4];
    float offset_sum[NT] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float2 scale = __half22float2(scales[j]), offset = __half22float2(offsets[j]);
#pragma unroll
      for (int nt = 0; nt < NT; nt++) {
        offset_sum[nt] = fmaf(e[nt][2 * j], offset.x, offset_sum[nt]);
        offset_sum[nt] = fmaf(e[nt][2 * j + 1], offset.y, offset_sum[nt]);
        // 2^23 + the weight: its digits are the float's lowest two bytes
        const float x = fmaf(e[nt][2 * j], scale.x, 0x1p23f), y = fmaf(e[nt][2 * j + 1], scale.y, 0x1p23f);
        p[nt][j] = transpose8x8(__byte_perm(__float_as_uint(x), __float_as_uint(y), 0x4051));
      }
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
      sums.z[nt][kGroupAt] = fmaf(offset_sum[nt], worth[nt], sums.z[nt][kGroupAt]);
    const auto* words = reinterpret_cast<const uint4*>(head) + kGroupAt / 2 * 64;
    const uint4 w0 = words[lane], w1 = words[32 + lane];
    constexpr int kF = 2 * (kGroupAt % 2);
    add_tile<kF>(sums, 2 * kGroupAt, w0, w1, p, worth);
    add_tile<kF + 1>(sums, 2 * kGroupAt + 1, w0, w1, p, worth);
    if constexpr (kGroupAt + 1 < kGroups) add_group<kGroupAt + 1>(sums, head, e, worth);
  }

  __device__ __forceinline__ void values(const unsigned char* head, WarpSums& sums, float (&e)[NT][8],
                                         float (&worth)[NT]) const {
    // what 16 bits of a weight are is the page's: a token's and group's scale is at most the largest one
    const auto* params = reinterpret_cast<const uint4*>(head + kCodes) + g;
    __half2 largest{};
#pragma unroll
    for (int group = 0; group < kGroups; group++) {
      __half2 scales[4];
      *reinterpret_cast<uint4*>(scales) = params[16 * group];
      const __half2 x = __hmax2(__hmax2(scales[0], scales[1]), __hmax2(scales[2], scales[3]));
      largest = group == 0 ? x : __hmax2(largest, x);
    }
    const WeightUnits units(__reduce_max_sync(
        ~0u, static_cast<uint32_t>(__half_as_ushort(__hmax(__low2half(largest), __high2half(largest))))));
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      worth[nt] *= units.down;
#pragma unroll
      for (int i = 0; i < 8; i++) e[nt][i] *= units.up;
    }
    add_group<0>(sums, head, e, worth);
  }

  /// `next()` gives the next piece, `release()` returns it.
  template <class Next, class Release>
  __device__ __forceinline__ void take(const Next& next, const Release& release, WarpSums& sums) const {
    float e[NT][8], worth[NT];
    keys(next(), sums, e, worth);
    release();
    values(next(), sums, e, worth);
    release();
  }

  /// Sends for a piece of a page.
  template <class Ring>
  __device__ __forceinline__ static void fetch(Ring& ring, const AttendArgs& args, int32_t slot, int kv_head,
                                               int piece) {
    const std::byte* page = args.packed.head(slot, 0);
    const std::byte* head = page + static_cast<size_t>(kv_head) * kHead;
    if (piece == 0)
      ring.fill(head + args.channels.k_heads, kHead, page, args.channels.norms ? kNorms : 0);
    else
      ring.fill(head + args.channels.v_heads, kHead);
  }
};

}  // namespace kv2::cuda::attention
