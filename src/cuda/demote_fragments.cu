// SPDX-License-Identifier: Apache-2.0
// Coder `round` in registers, for pages that a lane reads as whole fragments: head_dim 64 or 128 in one
// group. Bits are those of quant/int2/int2.cpp; compiled with -fmad=false as pages.cu is.
//
// A warp codes 16 tokens of K or of V of a head page; lane (g, t) has their fragments as fragment.h says, two
// bf16 to a word:
//   K: token g in words 0 and 2, g + 8 in words 1 and 3; a word is two channels, four lanes have a token
//   V: tokens 2t and 2t + 1 in words 0 and 1, 2t + 8 and 2t + 9 in words 2 and 3; a word is two tokens, eight
//   lanes have one
// so each lane has two sets of words, and of each set a number for the lower and one for the upper half of
// its words. A code is how many of three bounds a value reaches: the code is monotonous in the value, so each
// bound is a bf16, found once for a token by taking the specification's arithmetic back.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/demote_fragments.h"
#include "cuda/fragment.h"
#include "cuda/kernels.h"
#include "cuda/round_coder.cuh"

namespace kv2::cuda {
namespace {

constexpr int kPage = 64, kWarps = 4;  // of a block: 16 tokens each

using Pair = __nv_bfloat162;
__device__ __forceinline__ Pair as_pair(uint32_t x) {
  return *reinterpret_cast<const Pair*>(&x);
}
__device__ __forceinline__ uint32_t as_bits(Pair x) {
  return *reinterpret_cast<const uint32_t*>(&x);
}
__device__ __forceinline__ uint32_t both(uint32_t half) {
  return half | half << 16;
}

/// K or V of 16 tokens.
template <int D, bool kIsV>
struct Rows {
  static constexpr int kTiles = D / 16, kWords = 2 * kTiles;
  const int lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
  uint32_t x[2][kWords];  // [set]; word 2i + j is of channel tile i

  /// Which register of a fragment is the j-th of a set.
  static __host__ __device__ constexpr int reg(int set, int j) { return kIsV ? 2 * set + j : set + 2 * j; }

  /// Of what the other lanes and the other half of a word have of the same token.
  template <class Op>
  __device__ __forceinline__ uint32_t over_token(uint32_t v, const Op& op) const {
    if constexpr (!kIsV) v = op(v, __byte_perm(v, v, 0x1032));
#pragma unroll
    for (int mask = kIsV ? 4 : 1; mask < (kIsV ? 32 : 4); mask <<= 1)
      v = op(v, __shfl_xor_sync(~0u, v, mask));
    return v;
  }

  __device__ __forceinline__ void load(const uint4* fragments) {
#pragma unroll
    for (int i = 0; i < kTiles; i++) {
      const uint4 w = __ldcs(fragments + i * 32 + lane);
      const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int set = 0; set < 2; set++)
#pragma unroll
        for (int j = 0; j < 2; j++) x[set][2 * i + j] = words[reg(set, j)];
    }
  }

  /// Smallest and largest value of the sets' tokens. NaN and infinities are replaced first where there are
  /// any.
  __device__ __forceinline__ void range(uint32_t (&mn)[2], uint32_t (&mx)[2]) {
    for (bool again = true;; again = false) {
      bool finite = true;
#pragma unroll
      for (int set = 0; set < 2; set++) {
        Pair low = as_pair(x[set][0]), high = low;
#pragma unroll
        for (int i = 1; i < kWords; i++) {
          low = __hmin2_nan(low, as_pair(x[set][i]));
          high = __hmax2_nan(high, as_pair(x[set][i]));
        }
        mn[set] = as_bits(low), mx[set] = as_bits(high);
        const uint32_t all = __vmaxu2(mn[set] & 0x7fff7fffu, mx[set] & 0x7fff7fffu);
        finite = finite && max(all & 0xffff, all >> 16) <= 0x7f7f;
      }
      if (!again || __all_sync(~0u, finite)) break;
#pragma unroll
      for (int set = 0; set < 2; set++)
#pragma unroll
        for (int i = 0; i < kWords; i++)
          x[set][i] = finite_bits(static_cast<uint16_t>(x[set][i])) |
                      static_cast<uint32_t>(finite_bits(static_cast<uint16_t>(x[set][i] >> 16))) << 16;
    }
#pragma unroll
    for (int set = 0; set < 2; set++) {
      mn[set] = over_token(mn[set],
                           [](uint32_t a, uint32_t b) { return as_bits(__hmin2(as_pair(a), as_pair(b))); });
      mx[set] = over_token(mx[set],
                           [](uint32_t a, uint32_t b) { return as_bits(__hmax2(as_pair(a), as_pair(b))); });
    }
  }

  /// 1.0 in a half for each token of which more than `index` magnitudes are <= limit, as a mask.
  __device__ __forceinline__ void reach(const uint32_t (&limit)[2], Pair index, uint32_t (&mask)[2]) const {
#pragma unroll
    for (int set = 0; set < 2; set++) {
      Pair n[2] = {as_pair(0), as_pair(0)};  // counts up to 128 are exact
#pragma unroll
      for (int i = 0; i < kWords; i++)
        n[i & 1] = __hadd2(n[i & 1], __hle2(__habs2(as_pair(x[set][i])), as_pair(limit[set])));
      const uint32_t count = over_token(as_bits(__hadd2(n[0], n[1])), [](uint32_t a, uint32_t b) {
        return as_bits(__hadd2(as_pair(a), as_pair(b)));
      });
      mask[set] = __hgt2_mask(as_pair(count), index);
    }
  }

  /// Element `index` of each token's magnitudes, ascending; mn and mx are clamped to it. Magnitudes order as
  /// integers. It is mostly within four octaves of the largest (two are not enough where a channel stands
  /// out), and nine halvings find it; where they end at the lower end of that, it may be below, and fifteen
  /// do.
  __device__ __forceinline__ void clip(int clip_index, uint32_t (&mn)[2], uint32_t (&mx)[2],
                                       uint32_t (&limit)[2]) const {
    const Pair index = __float2bfloat162_rn(static_cast<float>(clip_index));
    uint32_t first[2];  // the smallest that is looked for
#pragma unroll
    for (int set = 0; set < 2; set++)
      first[set] = __vsubus2(__vmaxu2(mn[set] & 0x7fff7fffu, mx[set] & 0x7fff7fffu), both(511));
    halve(first, 0x100, index, limit);
    if (__any_sync(~0u,
                   (__vcmpeq2(limit[0], first[0]) & first[0]) | (__vcmpeq2(limit[1], first[1]) & first[1]))) {
      first[0] = first[1] = 0;
      halve(first, 0x4000, index, limit);
    }
#pragma unroll
    for (int set = 0; set < 2; set++) {
      mn[set] = as_bits(__hmax2(as_pair(mn[set]), as_pair(limit[set] | 0x80008000u)));
      mx[set] = as_bits(__hmin2(as_pair(mx[set]), as_pair(limit[set])));
    }
  }
  /// Loads, and each token's range and limit (infinity without a clip).
  __device__ __forceinline__ void load_and_clip(const uint4* fragments, int clip_index, uint32_t (&mn)[2],
                                                uint32_t (&mx)[2], uint32_t (&limit)[2]) {
    load(fragments);
    limit[0] = limit[1] = both(0x7f80);
    range(mn, mx);
    if (clip_index >= 0) clip(clip_index, mn, mx, limit);
  }
  /// The smallest t in [first, first + 2·bit) with more than `index` magnitudes <= t.
  __device__ __forceinline__ void halve(const uint32_t (&first)[2], uint32_t bit, Pair index,
                                        uint32_t (&t_out)[2]) const {
    uint32_t limit[2], mask[2];
    t_out[0] = first[0], t_out[1] = first[1];
#pragma unroll 1
    for (; bit; bit >>= 1) {
#pragma unroll
      for (int set = 0; set < 2; set++) limit[set] = t_out[set] + both(bit - 1);
      reach(limit, index, mask);
#pragma unroll
      for (int set = 0; set < 2; set++) t_out[set] += ~mask[set] & both(bit);
    }
  }
};

/// bf16 by rank: finite ones are 0x0080 (the lowest) to 0xff7f.
__device__ __forceinline__ uint16_t bits_of_rank(uint32_t rank) {
  return static_cast<uint16_t>(rank & 0x8000 ? rank & 0x7fff : ~rank);
}
/// Rank of the smallest bf16 that is at least x.
__device__ __forceinline__ uint32_t rank_above(double x) {
  const uint32_t bits = __float_as_uint(__double2float_ru(x));
  return bits >> 31 ? ~(bits >> 16) & 0xffff : ((bits + 0xffff) >> 16) | 0x8000;
}
__device__ __forceinline__ float next_above(float x) {  // of a positive number
  return __uint_as_float(__float_as_uint(x) + 1);
}
__device__ __forceinline__ float next_below(float x) {
  return __uint_as_float(__float_as_uint(x) - 1);
}

/// The smallest bf16 that has at least this code once it is clamped to ±limit; infinity where there is none.
/// The specification's steps, taken back one after the other; scale and offset have eleven bits, so that
/// doubles hold every number here exactly.
__device__ __forceinline__ uint32_t bound_of(const Scaled& s, int code, float limit) {
  // quotient + 0.5 rounds to `code` from 0.5 - 2^-25, 1.5, 2.5 on; a quotient rounds to these from half way
  // to the float below on (to 0.5 - 2^-25, which is odd, past that)
  const double quotient = code == 1 ? 0.5 - 0x1.8p-25 : code == 2 ? 1.5 - 0x1p-24 : 2.5 - 0x1p-23;
  const double least = s.scale * quotient;
  float distance = __double2float_ru(least);
  if (code == 1 && distance == least) distance = next_above(distance);
  // and x - offset rounds to that distance from half way to the float below it on, or past that
  const double bound = 0.5 * (static_cast<double>(distance) + next_below(distance)) + s.offset;
  uint32_t rank = rank_above(bound);
  if ((__float_as_uint(distance) & 1) && widen(bits_of_rank(rank)) == bound) rank++;
  const uint16_t bits = bits_of_rank(rank);
  if (s.constant || rank >= 0xff80 || widen(bits) > limit) return 0x7f80;
  return widen(bits) <= -limit ? 0xff80 : bits;
}

/// Codes of a word's two values in the lower bytes of its halves: 128 + code as bf16 ends in the code.
__device__ __forceinline__ uint32_t codes_of(uint32_t word, const uint32_t (&bounds)[3]) {
  Pair n = as_pair(both(0x4300));
#pragma unroll
  for (int i = 0; i < 3; i++) n = __hadd2(n, __hge2(as_pair(word), as_pair(bounds[i])));
  return as_bits(n);
}
/// The four codes of two words as bytes.
__device__ __forceinline__ uint32_t as_bytes(uint32_t x, uint32_t y) {
  return __byte_perm(x, y, 0x6420);
}

template <int D>
struct DemoteShared {
  // K: bytes of codes, [64 tokens][D / 16 pieces][16]: piece i of a token at i ^ (token + token / 8) % (D /
  // 16) V: words as they are stored
  uint32_t words[kPage * D / 4];
};

template <int D>
__device__ __forceinline__ void code_keys(const uint4* fragments, uint4* codes, __half2* params, int clip,
                                          DemoteShared<D>& shared) {
  using R = Rows<D, false>;
  constexpr int kPieces = D / 16;
  R rows;
  const int w = threadIdx.x / 32, g = rows.g, t = rows.t;
  uint32_t mn[2], mx[2], limit[2];
  rows.load_and_clip(fragments + w * R::kTiles * 32, clip, mn, mx, limit);
#pragma unroll
  for (int set = 0; set < 2; set++) {
    const int token = 16 * w + 8 * set + g;
    __half2 pair;
    const Scaled s =
        scale_of(widen(static_cast<uint16_t>(mn[set])), widen(static_cast<uint16_t>(mx[set])), &pair);
    if (t == 0) params[token] = pair;
    const uint32_t own = bound_of(s, max(t, 1), widen(static_cast<uint16_t>(limit[set])));
    const uint32_t bounds[3] = {both(__shfl_sync(~0u, own, 1, 4)), both(__shfl_sync(~0u, own, 2, 4)),
                                both(__shfl_sync(~0u, own, 3, 4))};
#pragma unroll
    for (int i = 0; i < R::kTiles; i++)  // channels 2t, 2t + 1, 2t + 8, 2t + 9 of tile i
      shared.words[token * (D / 4) + (i ^ (token + token / 8) % kPieces) * 4 + t] =
          as_bytes(codes_of(rows.x[set][2 * i], bounds), codes_of(rows.x[set][2 * i + 1], bounds));
  }
  __syncthreads();
  if (threadIdx.x >= D) return;
  // a lane's four words of one step of 32 channels, packed_k_of's way round
  const int step = threadIdx.x / 32, to_g = rows.g, to_t = rows.t;
  uint32_t out[4];
#pragma unroll
  for (int reg = 0; reg < 4; reg++) {
    out[reg] = 0;
#pragma unroll
    for (int f = 0; f < 4; f++) {
      const int token = 8 * to_g + 2 * f + reg % 2, piece = 2 * step + reg / 2;
      const uint2 two = *reinterpret_cast<const uint2*>(
          &shared.words[token * (D / 4) + (piece ^ (token + token / 8) % kPieces) * 4 + to_t % 2 * 2]);
      out[reg] |= __byte_perm(two.x, two.y, to_t < 2 ? 0x5410 : 0x7632) << (2 * f);
    }
  }
  codes[threadIdx.x] = {out[0], out[1], out[2], out[3]};
}

template <int D>
__device__ __forceinline__ void code_values(const uint4* fragments, uint4* codes, __half2* params, int clip,
                                            DemoteShared<D>& shared) {
  using R = Rows<D, true>;
  R rows;
  const int w = threadIdx.x / 32, g = rows.g, t = rows.t;
  uint32_t mn[2], mx[2], limit[2];
  rows.load_and_clip(fragments + w * R::kTiles * 32, clip, mn, mx, limit);
  // eight lanes share four tokens: lane g finds bounds of token g % 4, half `g` of set `g / 2`
  const auto own_of = [&](const uint32_t(&v)[2]) {
    const uint32_t word = g & 2 ? v[1] : v[0];
    return widen(static_cast<uint16_t>(g & 1 ? word >> 16 : word));
  };
  __half2 pair;
  const Scaled s = scale_of(own_of(mn), own_of(mx), &pair);
  if (g < 4) params[16 * w + 2 * t + (g & 1) + 4 * (g & 2)] = pair;
  const uint32_t first = bound_of(s, g / 4 + 1, own_of(limit)), third = bound_of(s, 3, own_of(limit));
  uint32_t bounds[2][3];
#pragma unroll
  for (int set = 0; set < 2; set++)
#pragma unroll
    for (int code = 0; code < 3; code++) {
      const int from = 2 * set + (code == 1 ? 4 : 0);  // and the next one
      const uint32_t v = code == 2 ? third : first;
      bounds[set][code] = __shfl_sync(~0u, v, 4 * from + t) | __shfl_sync(~0u, v, 4 * from + 4 + t) << 16;
    }
#pragma unroll
  for (int quad = 0; quad < D / 64; quad++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      uint32_t out = 0;
#pragma unroll
      for (int f = 0; f < 4; f++) {
        const int word = 2 * (4 * quad + f) + r;
        out |= as_bytes(codes_of(rows.x[0][word], bounds[0]), codes_of(rows.x[1][word], bounds[1]))
               << (2 * f);
      }
      // packed_v_at: tokens 16w + {2t, 2t + 1, 2t + 8, 2t + 9}
      shared.words[(2 * quad + t / 2) * 128 + (g * 4 + w) * 4 + r + t % 2 * 2] = out;
    }
  __syncthreads();
  if (threadIdx.x < D) codes[threadIdx.x] = reinterpret_cast<const uint4*>(shared.words)[threadIdx.x];
}

template <int D>
__global__ void __launch_bounds__(32 * kWarps)
    demote_fragments_kernel(Pool full, Pool packed, const DemotePage* pages, int clip_k, int clip_v,
                            int first_side) {
  __shared__ __align__(16) DemoteShared<D> shared;
  const DemotePage page = pages[blockIdx.x];
  const auto* from = reinterpret_cast<const uint4*>(full.head(page.full, blockIdx.y));
  std::byte* to = packed.head(page.packed, blockIdx.y);
  constexpr int kCodes = kPage * D / 4;
  auto* params = reinterpret_cast<__half2*>(to + 2 * kCodes);
  if (first_side + blockIdx.z == 0)
    code_keys<D>(from, reinterpret_cast<uint4*>(to), params, clip_k, shared);
  else
    code_values<D>(from + kPage * D / 8, reinterpret_cast<uint4*>(to + kCodes), params + kPage, clip_v,
                   shared);
}

}  // namespace

bool demotes_fragments(int head_dim, int group) {
  return group == head_dim && (head_dim == 64 || head_dim == 128);
}

void launch_demote_fragments(Pool full, Pool packed, const DemotePage* pages, int n_pages, int n_kv_heads,
                             int head_dim, int clip_k, int clip_v, int sides, cudaStream_t stream) {
  auto* kernel = head_dim == 64 ? demote_fragments_kernel<64> : demote_fragments_kernel<128>;
  kernel<<<dim3(n_pages, n_kv_heads, sides == 3 ? 2 : 1), 32 * kWarps, 0, stream>>>(
      full, packed, pages, clip_k, clip_v, sides == 2);
}

}  // namespace kv2::cuda
