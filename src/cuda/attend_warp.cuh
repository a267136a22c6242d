// SPDX-License-Identifier: Apache-2.0
// One warp's softmax over the pages it is given (attend.cu): the products of queries with codes and with
// bf16, the running maximum, and the sums. Codes are the A operand of mma on bytes, unsigned; q and the
// softmax weights are B, in 16-bit fixed point of two digits: column 2p of B is the upper digit of (query,
// head) pair p, column 2p + 1 the lower one, so that a lane gets both of its own pair's products, and
// integers add up exactly. With bf16 pages the two columns are a value rounded and what the rounding lost.
//
//   q        = step·(256·upper + lower), |upper| <= 127, lower signed; step: the head's largest value ÷ 32639
//   weight   = 2^(E-15)·(256·upper + lower) of e·scale, E: exponent of the page's largest scale of V, e <= 1
//              relative to the page's own largest logit
//   logit    = scale·(q·codes) + offset·Σq; Σ e·offset is added to the output once, at the end
//
// Lane (g, t) owns pair 4·nt + t of n-tile nt and tokens 8g..8g+7 of a packed page, and channels 16i + g and
// 16i + g + 8 of the output. Columns never mix, and no lane's result depends on what other columns hold.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/fragment.h"
#include "cuda/kernels.h"
#include "cuda/mma.cuh"

namespace kv2::cuda::attention {

constexpr int kPage = 64;
constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLowest = -1e30f;
constexpr float kTop = 32639.0f;  // 127·256 + 127

/// Head dim, groups, and what follows from them.
template <int D>
struct Shape {
  static constexpr int kGroups = D > 128 ? 2 : 1, kGroup = D / kGroups;
  static constexpr int kSteps = D / 32, kHalf = D / 16 % 2;  // of K across the channels
  static constexpr int kTiles = D / 16;                      // of 16 channels
  static constexpr int kQuads = D / 64, kPair = D / 32 % 2;  // of V, see fragment.h
  static constexpr int kCodes = kPage * D / 4, kParams = kPage * kGroups * 4;
  static constexpr int kBytes = 2 * (kCodes + kParams);
  static constexpr int kFullTile = 16 * D * 2;  // K or V of 16 tokens of a full page
  static constexpr int kVCodes = kCodes, kKParams = 2 * kCodes, kVParams = 2 * kCodes + kParams;
  static constexpr int kStageBytes = kBytes > kFullTile ? kBytes : kFullTile;
  static_assert(kGroups == 1 || (kGroup % 32 == 0 && kHalf == 0));
};

/// Blocks that a multiprocessor holds.
template <int D>
inline constexpr int kBlocks = D > 128 ? 1 : 2;

/// Shared memory: a ring of stages for each warp, and the warps' results of a run.
template <int D, int NT>
struct Shared {
  using S = Shape<D>;
  static constexpr int kPairs = 4 * NT;
  static constexpr int kStages = 2;  // in flight in each warp
  struct Partials {
    float o[kWarps][kPairs][D], m[kWarps][kPairs], l[kWarps][kPairs];
  };
  unsigned char ring[kWarps][kStages][S::kStageBytes];
  Partials warps;
  float2 factors[kWarps][kPairs];
  float m[kPairs], l[kPairs];       // of the run
  uint2 q_bf16[NT][S::kTiles][32];  // B fragments for full pages
  uint64_t full[kWarps][kStages];
  uint32_t is_last;
};

/// total = total ⊕ partial of one channel; the same instructions wherever partial results are merged.
struct Softmax {
  float m, l, o;
  __device__ void add(const Softmax& x) {
    const float n = fmaxf(m, x.m), a = exp2_fast(__fsub_rn(m, n)), b = exp2_fast(__fsub_rn(x.m, n));
    m = n;
    l = __fmaf_rn(b, x.l, __fmul_rn(a, l));
    o = __fmaf_rn(b, x.o, __fmul_rn(a, o));
  }
  __device__ float result() const { return __fdiv_rn(o, l); }
};

template <int D, int NT, bool kCapped>
struct Warp {
  using S = Shape<D>;
  static constexpr int kQWords = 2 * S::kSteps + S::kHalf;

  const AttendArgs& args;
  const AttendTile& tile;
  const int kv_head, lane, g, t;
  uint32_t q8[NT][kQWords];  // B fragments for packed pages: column g
  // of this lane's pair: logits in log2 per unit of the products with tile 0, and Σq of each group
  float unit[NT], q_sum[NT][S::kGroups];
  float o[NT][S::kTiles][2];  // times 4^(tile % 4) where the tile belongs to a quad; see v_exponent
  float m[NT], l[NT], z[NT][S::kGroups];

  __device__ Warp(const AttendArgs& a, const AttendTile& ti, int kv_head_)
      : args(a), tile(ti), kv_head(kv_head_), lane(threadIdx.x % 32), g(lane >> 2), t(lane & 3) {}

  __device__ int n_pairs() const { return tile.n_queries * tile.n_heads; }
  __device__ size_t row_of(int pair) const {  // of q and out, in heads
    const int query = pair / tile.n_heads, head = tile.first_head + pair % tile.n_heads;
    return static_cast<size_t>(tile.first_row + query) * (args.n_kv_heads * args.q_per_kv) +
           kv_head * args.q_per_kv + head;
  }
  /// An absent pair reads the last one and counts as zero.
  __device__ const float* q_row(int pair) const { return args.q + row_of(min(pair, n_pairs() - 1)) * D; }

  /// log4 of the factor that V's codes of a channel tile come with.
  __host__ __device__ static constexpr int v_field(int tile) {
    if (tile < 4 * S::kQuads) return tile % 4;
    return S::kPair && tile < 4 * S::kQuads + 2 ? tile % 2 : 0;
  }
  __device__ static constexpr float quarter(int times) {
    return times == 0 ? 1.0f : times == 1 ? 0.25f : times == 2 ? 0.0625f : 0.015625f;
  }

  // ---- queries

  __device__ static uint32_t digits(const int (&v)[4], bool lower) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int low = static_cast<int8_t>(v[i]);
      word |= (static_cast<uint32_t>(lower ? low : (v[i] - low) >> 8) & 0xffu) << (8 * i);
    }
    return word;
  }

  __device__ void prepare_packed() {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      const int pair = 4 * nt + (g >> 1);
      const float* row = q_row(pair);
      const bool here = pair < n_pairs();
      float4 x[kQWords];
      float largest = 0, sum = 0;
#pragma unroll
      for (int i = 0; i < kQWords; i++) {  // channels 16i + 4t..+3
        x[i] = __ldg(reinterpret_cast<const float4*>(row + 16 * i + 4 * t));
        largest =
            fmaxf(largest, fmaxf(fmaxf(fabsf(x[i].x), fabsf(x[i].y)), fmaxf(fabsf(x[i].z), fabsf(x[i].w))));
        sum += (x[i].x + x[i].y) + (x[i].z + x[i].w);
      }
#pragma unroll
      for (int mask = 1; mask < 4; mask <<= 1) {
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
        sum += __shfl_xor_sync(~0u, sum, mask);
      }
      const bool finite = largest < 3e38f && fabsf(sum) < INFINITY;
      const float inverse = here && finite && largest > 0x1p-100f ? __fdiv_rn(kTop, largest) : 0.0f;
      int total[S::kGroups] = {};
#pragma unroll
      for (int i = 0; i < kQWords; i++) {
        const int v[4] = {__float2int_rn(x[i].x * inverse), __float2int_rn(x[i].y * inverse),
                          __float2int_rn(x[i].z * inverse), __float2int_rn(x[i].w * inverse)};
        total[16 * i / S::kGroup] += (v[0] + v[1]) + (v[2] + v[3]);
        q8[nt][i] = digits(v, g & 1);
      }
      const float step = inverse > 0 ? __fdiv_rn(largest, kTop) * (args.softmax_scale * kLog2e) : 0.0f;
      unit[nt] = __shfl_sync(~0u, step, 8 * t);  // from the lanes of column 2t
#pragma unroll
      for (int s = 0; s < S::kGroups; s++) {
#pragma unroll
        for (int mask = 1; mask < 4; mask <<= 1) total[s] += __shfl_xor_sync(~0u, total[s], mask);
        const float group_sum = here && !finite ? NAN : static_cast<float>(total[s]) * step;
        q_sum[nt][s] = __shfl_sync(~0u, group_sum, 8 * t);
      }
    }
  }

  /// Upper or lower halves as bf16.
  __device__ static uint32_t split_bf16(float a, float b, bool lower) {
    __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
    if (lower) h = __floats2bfloat162_rn(a - __low2float(h), b - __high2float(h));
    return *reinterpret_cast<const uint32_t*>(&h);
  }
  /// B fragments of all channel tiles `from` a warp on in steps; written once per block.
  __device__ void prepare_full(uint2 (*out)[S::kTiles][32], int first, int step) const {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      const int pair = 4 * nt + (g >> 1);
      const float* row = q_row(pair);
      for (int i = first; i < S::kTiles; i += step) {
        float2 a = __ldg(reinterpret_cast<const float2*>(row + 16 * i + 2 * t)),
               b = __ldg(reinterpret_cast<const float2*>(row + 16 * i + 2 * t + 8));
        if (pair >= n_pairs()) a = b = float2{0.0f, 0.0f};
        out[nt][i][lane] = {split_bf16(a.x, a.y, g & 1), split_bf16(b.x, b.y, g & 1)};
      }
    }
  }

  // ---- the running softmax

  __device__ void start() {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
      for (int i = 0; i < S::kTiles; i++) o[nt][i][0] = o[nt][i][1] = 0;
#pragma unroll
      for (int s = 0; s < S::kGroups; s++) z[nt][s] = 0;
      m[nt] = kLowest, l[nt] = 0;
    }
  }

  __device__ float capped(float x) const {
    const float cap = args.soft_cap * kLog2e;
    return cap * tanhf(x * __frcp_rn(cap));
  }

  /// The largest of the lane's and of all tokens; finite even where every token is hidden.
  __device__ static float over_tokens(float x) {
#pragma unroll
    for (int mask = 4; mask < 32; mask <<= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
    return fmaxf(x, kLowest);
  }

  /// Takes the maximum of new logits into account and returns what weights relative to it are worth.
  __device__ void raise(const float (&largest)[NT], float (&worth)[NT]) {
    bool grew = false;
#pragma unroll
    for (int nt = 0; nt < NT; nt++) grew = grew || largest[nt] > m[nt];
    if (__any_sync(~0u, grew)) {
#pragma unroll
      for (int nt = 0; nt < NT; nt++) {
        const float n = fmaxf(m[nt], largest[nt]), r = exp2_fast(m[nt] - n);
        m[nt] = n;
        l[nt] *= r;
#pragma unroll
        for (int s = 0; s < S::kGroups; s++) z[nt][s] *= r;
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

  // ---- packed pages

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

  /// Logits of the lane's tokens, s[nt][2·tile + r].
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
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
          const float product = static_cast<float>(c[nt][i][2 * r] * 256 + c[nt][i][2 * r + 1]);
          const float sum = fmaf(p.x * (unit[nt] * quarter(i)), product, p.y * q_sum[nt][kGroupAt]);
          s[nt][2 * i + r] = kGroupAt == 0 ? sum : s[nt][2 * i + r] + sum;
        }
      }
    if constexpr (kGroupAt + 1 < S::kGroups) add_logits<kGroupAt + 1>(s, page);
  }

  /// o[nt][tile] += what codes·weights come to, from both steps' words.
  template <int F>
  __device__ __forceinline__ void add_tile(int tile, const uint4& w0, const uint4& w1,
                                           const uint32_t (&p)[NT][4], const float (&worth)[NT]) {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      int c[4] = {};
      mma_codes<Digits::Unsigned>(c, field<F>(w0.x), field<F>(w0.y), field<F>(w0.z), field<F>(w0.w), p[nt][0],
                                  p[nt][1]);
      mma_codes<Digits::Unsigned>(c, field<F>(w1.x), field<F>(w1.y), field<F>(w1.z), field<F>(w1.w), p[nt][2],
                                  p[nt][3]);
      o[nt][tile][0] = fmaf(static_cast<float>(c[0] * 256 + c[1]), worth[nt], o[nt][tile][0]);
      o[nt][tile][1] = fmaf(static_cast<float>(c[2] * 256 + c[3]), worth[nt], o[nt][tile][1]);
    }
  }

  template <int kGroupAt>
  __device__ __forceinline__ void add_values(const unsigned char* codes, const uint32_t (&p)[NT][4],
                                             const float (&worth)[NT]) {
    constexpr int kFirst = kGroupAt * S::kTiles / S::kGroups, kEnd = (kGroupAt + 1) * S::kTiles / S::kGroups;
    const auto* words = reinterpret_cast<const uint4*>(codes);
#pragma unroll
    for (int quad = 0; quad < S::kQuads; quad++) {  // groups of 192 and 256 end with a quad or half of one
      const uint4 w0 = words[quad * 64 + lane], w1 = words[quad * 64 + 32 + lane];
      if (4 * quad >= kFirst && 4 * quad < kEnd) add_tile<0>(4 * quad, w0, w1, p, worth);
      if (4 * quad + 1 >= kFirst && 4 * quad + 1 < kEnd) add_tile<1>(4 * quad + 1, w0, w1, p, worth);
      if (4 * quad + 2 >= kFirst && 4 * quad + 2 < kEnd) add_tile<2>(4 * quad + 2, w0, w1, p, worth);
      if (4 * quad + 3 >= kFirst && 4 * quad + 3 < kEnd) add_tile<3>(4 * quad + 3, w0, w1, p, worth);
    }
    if constexpr (S::kPair) {
      const uint4 w = words[S::kQuads * 64 + lane], later{w.x >> 4, w.y >> 4, w.z >> 4, w.w >> 4};
      add_tile<0>(4 * S::kQuads, w, later, p, worth);
      add_tile<1>(4 * S::kQuads + 1, w, later, p, worth);
    }
    if constexpr (S::kHalf) {
      const uint2 w = reinterpret_cast<const uint2*>(codes + (2 * S::kQuads + S::kPair) * 512)[lane];
      add_tile<0>(S::kTiles - 1, {w.x, w.x >> 2, w.x >> 4, w.x >> 6}, {w.y, w.y >> 2, w.y >> 4, w.y >> 6}, p,
                  worth);
    }
  }

  /// Sums over one group of channels; `e`: weights relative to the page's largest logit.
  template <int kGroupAt>
  __device__ __forceinline__ void add_group(const float (&e)[NT][8], const float (&worth)[NT],
                                            const unsigned char* page) {
    __half2 params[8];
    load_params(page + S::kVParams, g, kGroupAt, params);
    __half2 largest = params[0];
#pragma unroll
    for (int i = 1; i < 8; i++) largest = __hmax2(largest, params[i]);
    const uint32_t bits =
        __reduce_max_sync(~0u, static_cast<uint32_t>(__half_as_ushort(__low2half(largest))));
    const float scale = __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
    const int exponent = static_cast<int>(__float_as_uint(scale) >> 23) - 127;  // scale < 2^(exponent + 1)
    const float up = pow2(15 - exponent), down = pow2(exponent - 15);
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
        const float x = fmaf(e[nt][2 * j], a.x * up, 0x1p23f), y = fmaf(e[nt][2 * j + 1], b.x * up, 0x1p23f);
        p[nt][j] = transpose8x8(__byte_perm(__float_as_uint(x), __float_as_uint(y), 0x4051));
      }
      z[nt][kGroupAt] = fmaf(offsets, worth[nt], z[nt][kGroupAt]);
      in_units[nt] = worth[nt] * down;
    }
    add_values<kGroupAt>(page + S::kVCodes, p, in_units);
    if constexpr (kGroupAt + 1 < S::kGroups) add_group<kGroupAt + 1>(e, worth, page);
  }

  __device__ void packed_page(const unsigned char* page) {
    float s[NT][8], largest[NT], worth[NT];
    add_logits<0>(s, page);
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      if constexpr (kCapped)
#pragma unroll
        for (int i = 0; i < 8; i++) s[nt][i] = capped(s[nt][i]);
      float x = fmaxf(s[nt][0], s[nt][1]);
#pragma unroll
      for (int i = 2; i < 8; i++) x = fmaxf(x, s[nt][i]);
      largest[nt] = over_tokens(x);
    }
    raise(largest, worth);
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        s[nt][i] = exp2_fast(s[nt][i] - largest[nt]);
        sum += s[nt][i];
      }
      l[nt] = fmaf(sum, worth[nt], l[nt]);
    }
    add_group<0>(s, worth, page);
  }

  // ---- full pages, 16 tokens at a time

  /// Softmax weights of the `tile16`-th 16 tokens of a full page as B fragments, relative to their own
  /// maximum, and what those are worth. `own`: the page of the queries; keys past a query are hidden from it.
  __device__ void full_keys(const unsigned char* keys, int tile16, bool own, const uint2 (*q)[S::kTiles][32],
                            uint32_t (&p)[NT][2], float (&worth)[NT]) {
    float c[NT][4] = {};
#pragma unroll
    for (int i = 0; i < S::kTiles; i++) {
      const uint4 a = *reinterpret_cast<const uint4*>(keys + (i * 32 + lane) * 16);
#pragma unroll
      for (int nt = 0; nt < NT; nt++) {
        const uint2 b = q[nt][i][lane];
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
        if constexpr (kCapped) s[nt][r] = capped(s[nt][r]);
        if (tile16 * 16 + g + 8 * r > last) s[nt][r] = -INFINITY;
      }
      largest[nt] = over_tokens(fmaxf(s[nt][0], s[nt][1]));
    }
    raise(largest, worth);
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
      l[nt] = fmaf(sum, worth[nt], l[nt]);
    }
  }

  /// Rows past the last query of the page `own` may hold anything: they count as zero.
  __device__ void full_values(const unsigned char* values, int tile16, bool own, const uint32_t (&p)[NT][2],
                              const float (&worth)[NT]) {
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
      uint4 a = *reinterpret_cast<const uint4*>(values + (i * 32 + lane) * 16);
      a.x &= near, a.y &= near, a.z &= far, a.w &= far;
#pragma unroll
      for (int nt = 0; nt < NT; nt++) {
        float c[4] = {};
        mma_bf16(c, a, p[nt][0], p[nt][1]);
        const float units = worth[nt] * static_cast<float>(1 << (2 * v_field(i)));
        o[nt][i][0] = fmaf(c[0] + c[1], units, o[nt][i][0]);
        o[nt][i][1] = fmaf(c[2] + c[3], units, o[nt][i][1]);
      }
    }
  }

  /// Writes the warp's sums.
  __device__ void finish(float (*out)[D], float* out_m, float* out_l) {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      float sum = l[nt], offsets[S::kGroups];
#pragma unroll
      for (int s = 0; s < S::kGroups; s++) offsets[s] = z[nt][s];
#pragma unroll
      for (int mask = 4; mask < 32; mask <<= 1) {
        sum += __shfl_xor_sync(~0u, sum, mask);
#pragma unroll
        for (int s = 0; s < S::kGroups; s++) offsets[s] += __shfl_xor_sync(~0u, offsets[s], mask);
      }
      const int pair = 4 * nt + t;
#pragma unroll
      for (int i = 0; i < S::kTiles; i++)
#pragma unroll
        for (int r = 0; r < 2; r++)
          out[pair][16 * i + g + 8 * r] = fmaf(o[nt][i][r], quarter(v_field(i)), offsets[16 * i / S::kGroup]);
      if (g == 0) {
        out_m[pair] = m[nt];
        out_l[pair] = sum;
      }
    }
  }
};

}  // namespace kv2::cuda::attention
