// SPDX-License-Identifier: Apache-2.0
// One warp's softmax over the pages it is given (attend.cu): the products of queries with codes and with
// bf16, the running maximum, and the sums. K codes are the A operand of m16n8k16 as fp16 subnormals, q is B;
// V codes are A, transposed, and the softmax weights are B. q and the weights go in twice: column n < 4 of B
// is pair n rounded, column n + 4 what the rounding lost, so that attention is about as good as f32. Columns
// never mix.
#pragma once

#include <cuda_bf16.h>

#include "cuda/fragment.h"
#include "cuda/kernels.h"
#include "cuda/mma.cuh"

namespace kv2::cuda::attention {

constexpr int kPage = 64, kTiles = 4;  // tokens of a page, in tiles of 16
constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kStages = 3;  // in flight in each warp
static_assert(kRunPages == 32, "a lane for each page of a run");
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLowest = -1e30f;

template <int D>
struct PackedPage {
  static constexpr int kCodes = kPage * D / 4, kBytes = 2 * kCodes + 2 * kPage * 4;
  static constexpr int kFullTile = 16 * D * 2;  // K or V of 16 tokens of a full page
  static_assert(kFullTile <= kBytes);
  static constexpr int kKCodes = 0, kVCodes = kCodes, kKParams = 2 * kCodes,
                       kVParams = 2 * kCodes + kPage * 4;
};

/// Shared memory: a ring of stages for each warp; after a run the warps' results lie over it.
template <int D, int NT>
struct Shared {
  static constexpr int kPairs = 4 * NT;
  struct Partials {
    float o[kWarps][kPairs][D], m[kWarps][kPairs], l[kWarps][kPairs];
  };
  union {
    unsigned char ring[kWarps][kStages][PackedPage<D>::kBytes];
    Partials warps;
  };
  uint64_t full[kWarps][kStages];
  uint32_t is_last;
};
/// total = total ⊕ partial of one channel; the same instructions wherever runs are merged.
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

/// One warp's softmax over its pages. C columns 2t, 2t+1 of n-tile nt are pairs 4·nt + 2·(t & 1) + {0, 1};
/// lanes t < 2 stand for the upper halves, t >= 2 for the lower ones.
template <int D, int NT>
struct Warp {
  static constexpr int KS = D / 16;  // fragments across the channels
  static constexpr int kWordSets = kTiles * KS / 8;
  static constexpr int kTilesPerWord = 8 / KS;

  const AttendArgs& args;
  const AttendTile& tile;
  const int kv_head, lane, g, t;
  uint32_t q16[NT][8][2];  // B fragments for packed pages: q·2^(13-e)·4^-e(field), fp16
  float coefficient[NT][2], q_sum[NT][2];
  float o[NT][8][4], m[NT][2], l[NT][2], z[NT][2];
  int v_exponent = -24;    // packed: o is in units of 2^(24-14+v_exponent)·4^-e(field)
  bool natural = true;     // o in units of 1
  float cap;               // in log2
  const float2* q_column;  // q of this lane's B column of n-tile 0, from channel 2t on
  int q_step;              // to n-tile 1, in float2
  bool has_column[NT];
  uint32_t upper_bits;  // of a float's bits what a half keeps, in the lanes of lower halves; else none

  __device__ Warp(const AttendArgs& a, const AttendTile& ti, int kv_head_)
      : args(a), tile(ti), kv_head(kv_head_), lane(threadIdx.x % 32), g(lane >> 2), t(lane & 3) {
    upper_bits = t >= 2 ? 0xffffe000u : 0u;
    cap = args.soft_cap * kLog2e;
    for (int nt = 0; nt < NT; nt++) has_column[nt] = 4 * nt + (g & 3) < n_pairs();
    const auto column = [&](int nt) {  // an absent one reads the last pair and counts as zero
      return args.q + row_of(min(4 * nt + (g & 3), n_pairs() - 1)) * D + 2 * t;
    };
    q_column = reinterpret_cast<const float2*>(column(0));
    q_step = static_cast<int>(reinterpret_cast<const float2*>(column(NT - 1)) - q_column);
  }

  __device__ int n_pairs() const { return tile.n_queries * tile.n_heads; }
  __device__ size_t row_of(int pair) const {  // of q and out, in heads
    const int query = pair / tile.n_heads, head = tile.first_head + pair % tile.n_heads;
    return static_cast<size_t>(tile.first_row + query) * (args.n_kv_heads * args.q_per_kv) +
           kv_head * args.q_per_kv + head;
  }

  /// q of this lane's B column and channels 16·ks + 2t + 8r.
  __device__ float2 load_q(int nt, int ks, int r) const {
    const float2 x = __ldg(q_column + nt * q_step + ks * 8 + 4 * r);
    return has_column[nt] ? x : float2{0.0f, 0.0f};
  }

  __device__ void prepare_packed() {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      float2 q[KS][2];
#pragma unroll
      for (int ks = 0; ks < KS; ks++)
#pragma unroll
        for (int r = 0; r < 2; r++) q[ks][r] = load_q(nt, ks, r);
      float largest = 0, sum = 0;
#pragma unroll
      for (int ks = 0; ks < KS; ks++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const float2 x = q[ks][r];
          largest = fmaxf(largest, fmaxf(fabsf(x.x), fabsf(x.y)));
          sum += x.x + x.y;
        }
#pragma unroll
      for (int x = 1; x < 4; x <<= 1) {
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, x));
        sum += __shfl_xor_sync(~0u, sum, x);
      }
      const int exponent = max(static_cast<int>(__float_as_uint(largest) >> 23) - 127, -86);  // 13 - e <= 99
      const float up = pow2(13 - exponent);
#pragma unroll
      for (int f = 0; f < 8; f++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const float2 x = q[f % KS][r];
          const float a = x.x * up, b = x.y * up, down = pow2(-2 * field_exponent(f));
          __half2 h = __floats2half2_rn(a, b);
          if (g >= 4) h = __floats2half2_rn(a - __low2float(h), b - __high2float(h));
          h = __floats2half2_rn(__low2float(h) * down, __high2float(h) * down);
          q16[nt][f][r] = *reinterpret_cast<const uint32_t*>(&h);
        }
#pragma unroll
      for (int j = 0; j < 2; j++) {  // from the lanes of B column 2·(t & 1) + j
        const int from = 4 * (2 * (t & 1) + j);
        q_sum[nt][j] = __shfl_sync(~0u, sum, from) * (args.softmax_scale * kLog2e);
        coefficient[nt][j] = pow2(24 - 13 + __shfl_sync(~0u, exponent, from)) * (args.softmax_scale * kLog2e);
      }
    }
  }

  __device__ void start() {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
      for (int f = 0; f < 8; f++)
#pragma unroll
        for (int i = 0; i < 4; i++) o[nt][f][i] = 0;
#pragma unroll
      for (int j = 0; j < 2; j++) m[nt][j] = kLowest, l[nt][j] = 0, z[nt][j] = 0;
    }
    v_exponent = -24;
    natural = true;
  }

  template <int N>
  __device__ void cap_logits(float (&c)[NT][N][4]) const {
    if (args.soft_cap <= 0) return;
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
      for (int i = 0; i < N; i++)
#pragma unroll
        for (int x = 0; x < 4; x++) c[nt][i][x] = cap * tanhf(c[nt][i][x] / cap);
  }

  /// New maxima over logits; rescales what has been summed where one grew.
  template <int N>
  __device__ void raise_maximum(const float (&c)[NT][N][4]) {
    float n[NT][2];
    bool grew = false;
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        float x = m[nt][j];
#pragma unroll
        for (int i = 0; i < N; i++) x = fmaxf(x, fmaxf(c[nt][i][j], c[nt][i][2 + j]));
#pragma unroll
        for (int mask = 4; mask < 32; mask <<= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
        n[nt][j] = x;
        grew = grew || x > m[nt][j];
      }
    if (!__any_sync(~0u, grew)) return;
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const float r = exp2_fast(m[nt][j] - n[nt][j]);
        m[nt][j] = n[nt][j];
        l[nt][j] *= r;
        z[nt][j] *= r;
#pragma unroll
        for (int f = 0; f < 8; f++) {
          o[nt][f][j] *= r;
          o[nt][f][2 + j] *= r;
        }
      }
  }

  __device__ void scale_output(int common, int per_field) {  // o *= 2^common·4^(per_field·e(field)), exact
#pragma unroll
    for (int f = 0; f < 8; f++) {
      const float factor = pow2(max(-126, min(127, common + per_field * 2 * field_exponent(f))));
#pragma unroll
      for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int i = 0; i < 4; i++) o[nt][f][i] *= factor;
    }
  }
  __device__ void to_natural() {
    if (!natural) scale_output(24 - 14 + v_exponent, -1);
    natural = true;
  }
  __device__ void to_packed() {
    if (natural) scale_output(-(24 - 14 + v_exponent), 1);
    natural = false;
  }

  /// Both halves' products together: every lane has the whole dot product of its columns' pairs.
  __device__ static float with_other_half(float x) {
    return x + __shfl_xor_sync(~0u, x, 2);
  }

  /// The upper half of both in lanes t < 2, cut after a half's mantissa, and what was cut in the others.
  __device__ uint32_t half_of(float a, float b) const {
    a -= __uint_as_float(__float_as_uint(a) & upper_bits);
    b -= __uint_as_float(__float_as_uint(b) & upper_bits);
    uint32_t h;
    asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(b), "f"(a));
    return h;
  }

  /// Two sets of words at a time: two chains of dependent products.
  template <int F>
  __device__ __forceinline__ void multiply_keys(float (&c)[NT][kTiles][4], const uint4& u, const uint4& w,
                                                int set) {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      mma_f16(c[nt][set * kTilesPerWord + F / KS], field<F>(u.x), field<F>(u.y), field<F>(u.z), field<F>(u.w),
              q16[nt][F][0], q16[nt][F][1]);
      mma_f16(c[nt][(set + 1) * kTilesPerWord + F / KS], field<F>(w.x), field<F>(w.y), field<F>(w.z),
              field<F>(w.w), q16[nt][F][0], q16[nt][F][1]);
    }
    if constexpr (F < 7) multiply_keys<F + 1>(c, u, w, set);
  }
  template <int F>
  __device__ __forceinline__ void multiply_values(const uint4& w, const uint32_t (&p)[kTilesPerWord][NT][2]) {
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
      mma_f16(o[nt][F], field<F>(w.x), field<F>(w.y), field<F>(w.z), field<F>(w.w), p[F / KS][nt][0],
              p[F / KS][nt][1]);
    if constexpr (F < 7) multiply_values<F + 1>(w, p);
  }

  __device__ void packed_page(const unsigned char* page) {
    using P = PackedPage<D>;
    to_packed();
    float c[NT][kTiles][4] = {};
#pragma unroll
    for (int set = 0; set < kWordSets; set += 2) {
      const auto* words = reinterpret_cast<const uint4*>(page + P::kKCodes) + set * 32 + lane;
      multiply_keys<0>(c, words[0], words[32], set);
    }
    const auto* k_params = reinterpret_cast<const __half2*>(page + P::kKParams);
    const auto* v_params = reinterpret_cast<const __half2*>(page + P::kVParams);
    __half2 v_pair[kTiles][2];
    __half2 largest = __float2half2_rn(0.0f);
#pragma unroll
    for (int i = 0; i < kTiles; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float2 kp = __half22float2(k_params[i * 16 + r * 8 + g]);
        v_pair[i][r] = v_params[i * 16 + r * 8 + g];
        largest = __hmax2(largest, v_pair[i][r]);
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
          for (int j = 0; j < 2; j++) {
            float& s = c[nt][i][2 * r + j];
            s = fmaf(kp.x * coefficient[nt][j], with_other_half(s), kp.y * q_sum[nt][j]);
          }
      }
    cap_logits(c);
    raise_maximum(c);
    // The weights are scaled so that the page's largest scale becomes 2^14: fp16 would lose small ones.
    const uint32_t scale_bits =
        __reduce_max_sync(~0u, static_cast<uint32_t>(__half_as_ushort(__low2half(largest))));
    const int exponent =
        static_cast<int>(__float_as_uint(__half2float(__ushort_as_half(static_cast<uint16_t>(scale_bits)))) >>
                         23) -
        127;
    if (exponent > v_exponent) {
      scale_output(v_exponent - exponent, 0);
      v_exponent = exponent;
    }
    const float up = pow2(14 - v_exponent);
#pragma unroll
    for (int set = 0; set < kWordSets; set++) {
      uint32_t p[kTilesPerWord][NT][2];
#pragma unroll
      for (int sub = 0; sub < kTilesPerWord; sub++) {
        const int i = set * kTilesPerWord + sub;
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const float2 vp = __half22float2(v_pair[i][r]);
          const float scale = vp.x * up;
#pragma unroll
          for (int nt = 0; nt < NT; nt++) {
            const float e0 = exp2_fast(c[nt][i][2 * r] - m[nt][0]),
                        e1 = exp2_fast(c[nt][i][2 * r + 1] - m[nt][1]);
            l[nt][0] += e0;
            l[nt][1] += e1;
            z[nt][0] = fmaf(e0, vp.y, z[nt][0]);
            z[nt][1] = fmaf(e1, vp.y, z[nt][1]);
            p[sub][nt][r] = transpose8x8(half_of(e0 * scale, e1 * scale));
          }
        }
      }
      multiply_values<0>(*reinterpret_cast<const uint4*>(page + P::kVCodes + (set * 32 + lane) * 16), p);
    }
  }

  /// Upper or lower halves as bf16.
  __device__ static uint32_t split_bf16(float a, float b, bool lower) {
    __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
    if (lower) h = __floats2bfloat162_rn(a - __low2float(h), b - __high2float(h));
    return *reinterpret_cast<const uint32_t*>(&h);
  }

  /// Softmax weights of 16 tokens of a full page, the `tile16`-th of it, as B fragments. `own`: the page of
  /// the queries; keys past a query are hidden from it.
  __device__ void full_keys(const unsigned char* keys, int tile16, bool own, uint32_t (&p)[NT][2]) {
    to_natural();
    uint32_t q[NT][KS][2];
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
      for (int ks = 0; ks < KS; ks++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const float2 x = load_q(nt, ks, r);
          q[nt][ks][r] = split_bf16(x.x, x.y, g >= 4);
        }
    float c[NT][1][4] = {};
#pragma unroll
    for (int ks = 0; ks < KS; ks++) {
      const uint4 a = *reinterpret_cast<const uint4*>(keys + (ks * 32 + lane) * 16);
#pragma unroll
      for (int nt = 0; nt < NT; nt++) mma_bf16(c[nt][0], a, q[nt][ks][0], q[nt][ks][1]);
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
      for (int x = 0; x < 4; x++) c[nt][0][x] = with_other_half(c[nt][0][x]) * (args.softmax_scale * kLog2e);
    cap_logits(c);
    if (own) {
#pragma unroll
      for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int x = 0; x < 4; x++) {
          const int query = (4 * nt + 2 * (t & 1) + (x & 1)) / tile.n_heads;
          const int last = tile.first_in_page + min(query, tile.n_queries - 1);
          if (tile16 * 16 + g + 8 * (x >> 1) > last) c[nt][0][x] = -INFINITY;
        }
    }
    raise_maximum(c);
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float e0 = exp2_fast(c[nt][0][2 * r] - m[nt][0]),
                    e1 = exp2_fast(c[nt][0][2 * r + 1] - m[nt][1]);
        l[nt][0] += e0;
        l[nt][1] += e1;
        p[nt][r] = transpose8x8(split_bf16(e0, e1, t >= 2));
      }
  }

  /// Rows past the last query of the page `own` may hold anything: they count as zero.
  __device__ void full_values(const unsigned char* values, int tile16, bool own, const uint32_t (&p)[NT][2]) {
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
    for (int ks = 0; ks < KS; ks++) {
      uint4 a = *reinterpret_cast<const uint4*>(values + (ks * 32 + lane) * 16);
      a.x &= near, a.y &= near, a.z &= far, a.w &= far;
#pragma unroll
      for (int nt = 0; nt < NT; nt++) mma_bf16(o[nt][ks], a, p[nt][0], p[nt][1]);
    }
  }

  /// Writes the warp's sums, both halves of every column together.
  __device__ void finish(float (*out)[D], float* out_m, float* out_l) {
    to_natural();
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        float sum = l[nt][j], offsets = z[nt][j];
#pragma unroll
        for (int mask = 4; mask < 32; mask <<= 1) {
          sum += __shfl_xor_sync(~0u, sum, mask);
          offsets += __shfl_xor_sync(~0u, offsets, mask);
        }
        const int pair = 4 * nt + 2 * (t & 1) + j;
#pragma unroll
        for (int ks = 0; ks < KS; ks++)
#pragma unroll
          for (int r = 0; r < 2; r++) {
            float x = o[nt][ks][2 * r + j];
            if (kTilesPerWord == 2) x += o[nt][(ks + KS) % 8][2 * r + j];
            x = with_other_half(x);
            if (t < 2) out[pair][ks * 16 + g + 8 * r] = x + offsets;
          }
        if (g == 0 && t < 2) {
          out_m[pair] = m[nt][j];
          out_l[pair] = sum;
        }
      }
  }
};

}  // namespace kv2::cuda::attention
