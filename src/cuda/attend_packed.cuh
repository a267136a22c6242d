// SPDX-License-Identifier: Apache-2.0
// Packed pages in attention: products of queries with codes. Codes are the A operand of mma on bytes,
// unsigned; q and the softmax weights are B, in fixed point of two digits (fixed_point.cuh): column 2p of B
// is the upper digit of (query, head) pair p, column 2p + 1 the lower one, so that a lane gets both of its
// own pair's products, and integers add up exactly.
//
//   logit    = scale·(q·codes) + offset·Σq; Σ e·offset is added to the output once, at the end
//
// Lane (g, t) has tokens 8g..8g+7 of a page.
#pragma once

#include "cuda/attend_sums.cuh"
#include "cuda/fixed_point.cuh"

namespace kv2::cuda::attention {

template <int D, int NT, bool kCapped>
struct PackedPages {
  using S = Shape<D>;
  static constexpr int kQWords = 2 * S::kSteps + S::kHalf;
  // for attend_kernel: a page comes in one piece, tiles of full pages whole
  static constexpr int kHeadDim = D, kNT = NT;
  static constexpr bool kIsCapped = kCapped;
  static constexpr int kPieces = 1, kHalves = 1, kStages = 2, kStageBytes = S::kStageBytes;
  struct Queries {};  // nothing in shared memory
  using WarpSums = Sums<D, NT>;

  const AttendArgs& args;
  const int lane, g, t;
  uint32_t q8[NT][kQWords];  // B fragments: column g
  // of this lane's pair: step in log2, and Σq of each group in steps
  float unit[NT], q_sum[NT][S::kGroups];

  __device__ explicit PackedPages(const AttendArgs& a)
      : args(a), lane(threadIdx.x % 32), g(lane >> 2), t(lane & 3) {}

  /// Of queries in memory, or in a block's shared memory.
  __device__ void prepare(const Pairs<D>& pairs) {
    prepare_rows([&](int pair) { return pairs.q_row(pair); }, pairs.n());
  }
  __device__ void prepare(const float (*rows)[D + 16], int n_pairs, Queries&) {
    prepare_rows([&](int pair) { return rows[pair]; }, n_pairs);
  }
  template <class Row>
  __device__ __forceinline__ void prepare_rows(const Row& row_of, int n_pairs) {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      const int pair = 4 * nt + (g >> 1);
      const float* row = row_of(pair);
      const bool here = pair < n_pairs;
      float4 x[kQWords];
      float largest = 0, sum = 0;
#pragma unroll
      for (int i = 0; i < kQWords; i++) {  // channels 16i + 4t..+3
        x[i] = *reinterpret_cast<const float4*>(row + 16 * i + 4 * t);
        largest =
            fmaxf(largest, fmaxf(fmaxf(fabsf(x[i].x), fabsf(x[i].y)), fmaxf(fabsf(x[i].z), fabsf(x[i].w))));
        sum += (x[i].x + x[i].y) + (x[i].z + x[i].w);
      }
#pragma unroll
      for (int mask = 1; mask < 4; mask <<= 1) {
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
        sum += __shfl_xor_sync(~0u, sum, mask);
      }
      const FixedPoint fixed(largest, sum, here);
      int total[S::kGroups] = {};
#pragma unroll
      for (int i = 0; i < kQWords; i++) {
        const int v[4] = {fixed.of(x[i].x), fixed.of(x[i].y), fixed.of(x[i].z), fixed.of(x[i].w)};
        total[16 * i / S::kGroup] += (v[0] + v[1]) + (v[2] + v[3]);
        q8[nt][i] = digits(v, g & 1);
      }
      const float step = fixed.step * (args.softmax_scale * kLog2e);
      unit[nt] = __shfl_sync(~0u, step, 8 * t);  // from the lanes of column 2t
#pragma unroll
      for (int s = 0; s < S::kGroups; s++) {
#pragma unroll
        for (int mask = 1; mask < 4; mask <<= 1) total[s] += __shfl_xor_sync(~0u, total[s], mask);
        const float group_sum = fixed.is_nan ? NAN : static_cast<float>(total[s]);
        q_sum[nt][s] = __shfl_sync(~0u, group_sum, 8 * t);
      }
    }
  }

  template <int kGroupAt>
  __device__ __forceinline__ void multiply_keys(int (&c)[NT][4][4], const unsigned char* codes) const {
    constexpr int kFirst = kGroupAt * S::kSteps / S::kGroups, kEnd = (kGroupAt + 1) * S::kSteps / S::kGroups;
#pragma unroll
    for (int step = kFirst; step < kEnd; step++) {
      const uint4 w = reinterpret_cast<const uint4*>(codes)[step * 32 + lane];
#pragma unroll
      for (int nt = 0; nt < NT; nt++) {
        const uint32_t b0 = q8[nt][2 * step], b1 = q8[nt][2 * step + 1];
        mma_codes<Digits::Signed>(c[nt][0], field<0>(w.x), field<0>(w.y), field<0>(w.z), field<0>(w.w), b0,
                                  b1);
        mma_codes<Digits::Signed>(c[nt][1], field<1>(w.x), field<1>(w.y), field<1>(w.z), field<1>(w.w), b0,
                                  b1);
        mma_codes<Digits::Signed>(c[nt][2], field<2>(w.x), field<2>(w.y), field<2>(w.z), field<2>(w.w), b0,
                                  b1);
        mma_codes<Digits::Signed>(c[nt][3], field<3>(w.x), field<3>(w.y), field<3>(w.z), field<3>(w.w), b0,
                                  b1);
      }
    }
    if constexpr (S::kHalf) {
      const uint2 w = reinterpret_cast<const uint2*>(codes + S::kSteps * 512)[lane];
#pragma unroll
      for (int nt = 0; nt < NT; nt++) {
        const uint32_t b = q8[nt][2 * S::kSteps];
        mma_codes_half(c[nt][0], field<0>(w.x), field<0>(w.y), b);
        mma_codes_half(c[nt][1], field<1>(w.x), field<1>(w.y), b);
        mma_codes_half(c[nt][2], field<2>(w.x), field<2>(w.y), b);
        mma_codes_half(c[nt][3], field<3>(w.x), field<3>(w.y), b);
      }
    }
  }

  /// Params of this lane's eight tokens and one group.
  __device__ static void load_params(const unsigned char* params, int g, int group, __half2 (&out)[8]) {
    if constexpr (S::kGroups == 1) {
      *reinterpret_cast<uint4*>(out) = reinterpret_cast<const uint4*>(params)[2 * g];
      *reinterpret_cast<uint4*>(out + 4) = reinterpret_cast<const uint4*>(params)[2 * g + 1];
    } else {
#pragma unroll
      for (int i = 0; i < 8; i++)
        out[i] = reinterpret_cast<const __half2*>(params)[(8 * g + i) * S::kGroups + group];
    }
  }

  /// Logits of the lane's tokens in units, s[nt][2·tile + r].
  template <int kGroupAt>
  __device__ __forceinline__ void add_logits(float (&s)[NT][8], const unsigned char* page) const {
    int c[NT][4][4] = {};
    multiply_keys<kGroupAt>(c, page);
    __half2 params[8];
    load_params(page + S::kKParams, g, kGroupAt, params);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float2 p = __half22float2(params[2 * i + r]);
        const float scale = p.x * quarter(i);
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
          const float product = static_cast<float>(c[nt][i][2 * r] * 256 + c[nt][i][2 * r + 1]);
          const float sum = fmaf(scale, product, p.y * q_sum[nt][kGroupAt]);
          s[nt][2 * i + r] = kGroupAt == 0 ? sum : s[nt][2 * i + r] + sum;
        }
      }
    if constexpr (kGroupAt + 1 < S::kGroups) add_logits<kGroupAt + 1>(s, page);
  }

  /// o[nt][tile] += what codes·weights come to, from both steps' words.
  template <int F>
  __device__ __forceinline__ void add_tile(Sums<D, NT>& sums, int tile, const uint4& w0, const uint4& w1,
                                           const uint32_t (&p)[NT][4], const float (&worth)[NT]) const {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) add_weighted_codes<F>(sums.o[nt][tile], w0, w1, p[nt], worth[nt]);
  }

  template <int kGroupAt>
  __device__ __forceinline__ void add_values(Sums<D, NT>& sums, const unsigned char* codes,
                                             const uint32_t (&p)[NT][4], const float (&worth)[NT]) const {
    constexpr int kFirst = kGroupAt * S::kTiles / S::kGroups, kEnd = (kGroupAt + 1) * S::kTiles / S::kGroups;
    const auto* words = reinterpret_cast<const uint4*>(codes);
#pragma unroll
    for (int quad = 0; quad < S::kQuads; quad++) {  // groups of 192 and 256 end with a quad or half of one
      const uint4 w0 = words[quad * 64 + lane], w1 = words[quad * 64 + 32 + lane];
      if (4 * quad >= kFirst && 4 * quad < kEnd) add_tile<0>(sums, 4 * quad, w0, w1, p, worth);
      if (4 * quad + 1 >= kFirst && 4 * quad + 1 < kEnd) add_tile<1>(sums, 4 * quad + 1, w0, w1, p, worth);
      if (4 * quad + 2 >= kFirst && 4 * quad + 2 < kEnd) add_tile<2>(sums, 4 * quad + 2, w0, w1, p, worth);
      if (4 * quad + 3 >= kFirst && 4 * quad + 3 < kEnd) add_tile<3>(sums, 4 * quad + 3, w0, w1, p, worth);
    }
    if constexpr (S::kPair) {
      const uint4 w = words[S::kQuads * 64 + lane], later{w.x >> 4, w.y >> 4, w.z >> 4, w.w >> 4};
      add_tile<0>(sums, 4 * S::kQuads, w, later, p, worth);
      add_tile<1>(sums, 4 * S::kQuads + 1, w, later, p, worth);
    }
    if constexpr (S::kHalf) {
      const uint2 w = reinterpret_cast<const uint2*>(codes + (2 * S::kQuads + S::kPair) * 512)[lane];
      add_tile<0>(sums, S::kTiles - 1, {w.x, w.x >> 2, w.x >> 4, w.x >> 6},
                  {w.y, w.y >> 2, w.y >> 4, w.y >> 6}, p, worth);
    }
  }

  /// Sums over one group of channels; `e`: weights relative to the page's largest logit.
  template <int kGroupAt>
  __device__ __forceinline__ void add_group(Sums<D, NT>& sums, const float (&e)[NT][8],
                                            const float (&worth)[NT], const unsigned char* page) const {
    __half2 params[8];
    load_params(page + S::kVParams, g, kGroupAt, params);
    __half2 largest = params[0];
#pragma unroll
    for (int i = 1; i < 8; i++) largest = __hmax2(largest, params[i]);
    const uint32_t bits =
        __reduce_max_sync(~0u, static_cast<uint32_t>(__half_as_ushort(__low2half(largest))));
    const WeightUnits units(bits);
    uint32_t p[NT][4];
    float in_units[NT];
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      float offsets = 0;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float2 a = __half22float2(params[2 * j]), b = __half22float2(params[2 * j + 1]);
        offsets = fmaf(e[nt][2 * j], a.y, offsets);
        offsets = fmaf(e[nt][2 * j + 1], b.y, offsets);
        // 2^23 + the weight: its digits are the float's lowest two bytes
        const float x = fmaf(e[nt][2 * j], a.x * units.up, 0x1p23f),
                    y = fmaf(e[nt][2 * j + 1], b.x * units.up, 0x1p23f);
        p[nt][j] = transpose8x8(__byte_perm(__float_as_uint(x), __float_as_uint(y), 0x4051));
      }
      sums.z[nt][kGroupAt] = fmaf(offsets, worth[nt], sums.z[nt][kGroupAt]);
      in_units[nt] = worth[nt] * units.down;
    }
    add_values<kGroupAt>(sums, page + S::kVCodes, p, in_units);
    if constexpr (kGroupAt + 1 < S::kGroups) add_group<kGroupAt + 1>(sums, e, worth, page);
  }

  __device__ __forceinline__ void take(const unsigned char* page, Sums<D, NT>& sums) const {
    float s[NT][8], worth[NT];
    add_logits<0>(s, page);
    weights_of_logits<kCapped>(args, unit, s, sums, worth);
    add_group<0>(sums, s, worth, page);
  }
  template <class Next, class Release>
  __device__ __forceinline__ void take(const Next& next, const Release& release, WarpSums& sums) const {
    take(next(), sums);
    release();
  }
  template <class Ring>
  __device__ __forceinline__ static void fetch(Ring& ring, const AttendArgs& args, int32_t slot, int kv_head,
                                               int) {
    ring.fill(args.packed.head(slot, kv_head), S::kBytes);
  }
};

}  // namespace kv2::cuda::attention
