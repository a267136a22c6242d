// SPDX-License-Identifier: Apache-2.0
// append and demote (coder `round`). demote is the specification of quant/int2/int2.cpp, bit for bit: this
// file is compiled with -fmad=false, divisions are IEEE, roundings to nearest even, and nothing is flushed to
// zero.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/bf16_bits.cuh"
#include "cuda/demote_fragments.h"
#include "cuda/fragment.h"
#include "cuda/kernels.h"
#include "cuda/round_coder.cuh"

namespace kv2::cuda {
namespace {

constexpr int kPage = 64;

__global__ void append_kernel(const float* k, const float* v, Pool full, const AppendRow* rows,
                              int n_kv_heads, int d) {
  const AppendRow row = rows[blockIdx.x];
  const int32_t slot = row.full_pages[row.pos / kPage];
  const int token = static_cast<int>(row.pos % kPage);
  const size_t from = static_cast<size_t>(blockIdx.x) * n_kv_heads * d;
  for (int i = threadIdx.x; i < n_kv_heads * d; i += blockDim.x) {
    const int head = i / d, channel = i % d;
    auto* page = reinterpret_cast<uint16_t*>(full.head(slot, head));
    page[full_k_at(d, token, channel)] = to_bf16_bits(k[from + i]);
    page[kPage * d + full_v_at(d, token, channel)] = to_bf16_bits(v[from + i]);
  }
}

// ---- demote: a block codes K or V of one head page
constexpr int kThreads = 256;

/// Element `index` of |x| ascending: magnitudes of bf16 order as integers, so 15 halvings of their range find
/// it.
__device__ uint16_t order_statistic(const uint16_t* row, int d, int index, int lane) {
  uint32_t low = 0;  // smallest t with more than `index` elements <= t
  for (uint32_t bit = 0x4000; bit; bit >>= 1) {
    const uint32_t below = low + bit - 1;  // try t <= below
    int count = 0;
    for (int i = lane; i < (d + 31) / 32 * 32; i += 32)
      count += __popc(__ballot_sync(~0u, i < d && (row[i < d ? i : 0] & 0x7fffu) <= below));
    if (count <= index) low += bit;
  }
  return static_cast<uint16_t>(low);
}

/// Step 5. A division is only done where the product with the inverse comes near a code's boundary: elsewhere
/// both lie on the same side of it.
__device__ int code_of(float x, const Scaled& s) {
  const float distance = __fsub_rn(x, s.offset);
  float level = __fmaf_rn(distance, s.inverse, 0.5f);
  if (fabsf(level - rintf(level)) < 1e-4f) level = __fadd_rn(__fdiv_rn(distance, s.scale), 0.5f);
  return s.constant ? 0 : static_cast<int>(fminf(fmaxf(floorf(level), 0.0f), 3.0f));
}

__device__ Scaled scale_group(const uint16_t* x, int group, __half2* pair) {
  float mn = widen(x[0]), mx = mn;
  for (int i = 1; i < group; i++) {
    mn = fminf(mn, widen(x[i]));
    mx = fmaxf(mx, widen(x[i]));
  }
  return scale_of(mn, mx, pair);
}

/// rows [64][stride] of bf16 bits, finite. D: head_dim where it is known to the compiler, else 0.
template <int D>
__device__ void load_rows(const uint16_t* from, uint16_t* rows, int head_dim, bool is_v) {
  const int d = D ? D : head_dim, stride = d + 2, steps = d >> 4;
  const auto* words = reinterpret_cast<const uint4*>(from);
  for (int i = threadIdx.x; i < kPage * d / 8; i += kThreads) {  // a lane's four registers of a fragment
    const uint4 four = words[i];
    const int fragment = i >> 5, lane = i & 31, tile = fragment / steps * 16, step = fragment % steps * 16;
    const uint32_t word[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int reg = 0; reg < 4; reg++) {
      const int row = (lane >> 2) + 8 * (reg & 1), column = 2 * (lane & 3) + 8 * (reg >> 1);
      const uint16_t a = finite_bits(static_cast<uint16_t>(word[reg]));
      const uint16_t b = finite_bits(static_cast<uint16_t>(word[reg] >> 16));
      if (is_v) {
        rows[(tile + column) * stride + step + row] = a;
        rows[(tile + column + 1) * stride + step + row] = b;
      } else {
        *reinterpret_cast<uint32_t*>(&rows[(tile + row) * stride + step + column]) =
            a | static_cast<uint32_t>(b) << 16;
      }
    }
  }
}

__device__ void clip_rows(uint16_t* rows, int d, int stride, int index) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int token = warp; token < kPage; token += kThreads / 32) {
    uint16_t* row = rows + token * stride;
    const uint16_t threshold = order_statistic(row, d, index, lane);
    __syncwarp();
    for (int i = lane; i < d; i += 32) {
      const uint16_t x = row[i];
      if ((x & 0x7fff) > threshold) row[i] = static_cast<uint16_t>((x & 0x8000) | threshold);
    }
  }
}

// ---- head_dim up to 128 in one group: four threads to a token, its values in registers, two to a word

/// Of the quad's values (magnitudes, 15 bits each in both halves of a word), how many are <= limit.
template <int W>
__device__ int count_up_to(const uint32_t (&magnitude)[W], uint32_t limit) {
  const uint32_t top = (limit | limit << 16) | 0x80008000u;  // top - x keeps bit 15 where x <= limit
  uint32_t n = 0;
#pragma unroll
  for (int i = 0; i < W; i++) n += ((top - magnitude[i]) >> 15) & 0x00010001u;
  n = (n & 0xffff) + (n >> 16);
  n += __shfl_xor_sync(~0u, n, 1);
  return static_cast<int>(n + __shfl_xor_sync(~0u, n, 2));
}

/// As order_statistic. The threshold is mostly within four octaves of the largest: then nine halvings do.
template <int W>
__device__ uint32_t quad_order_statistic(const uint32_t (&magnitude)[W], int index) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < W; i++) largest = __vmaxu2(largest, magnitude[i]);
  largest = max(largest & 0xffff, largest >> 16);
  largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
  uint32_t low = largest > 511 ? largest - 511 : 0, bit = 0x100;
  const int below = count_up_to(magnitude, low - (low > 0));
  const bool above = low == 0 || below <= index;
  if (!__all_sync(~0u, above)) low = 0, bit = 0x4000;
  for (; bit; bit >>= 1)
    if (count_up_to(magnitude, low + bit - 1) <= index) low += bit;
  return low;
}

template <int W>
__device__ void clip_and_scale(uint16_t* rows, int stride, int clip, Scaled* scaled, __half2* pairs) {
  const int token = threadIdx.x / 4, part = threadIdx.x % 4;
  auto* words = reinterpret_cast<uint32_t*>(rows + token * stride) + part * W;
  uint32_t x[W];
#pragma unroll
  for (int i = 0; i < W; i++) x[i] = words[i];
  if (clip >= 0) {
    uint32_t magnitude[W];
#pragma unroll
    for (int i = 0; i < W; i++) magnitude[i] = x[i] & 0x7fff7fffu;
    const uint32_t threshold = quad_order_statistic(magnitude, clip);
#pragma unroll
    for (int i = 0; i < W; i++) {
      x[i] = (x[i] & 0x80008000u) | __vminu2(magnitude[i], threshold | threshold << 16);
      words[i] = x[i];
    }
  }
  float mn = widen(static_cast<uint16_t>(x[0])), mx = mn;
#pragma unroll
  for (int i = 0; i < W; i++) {
    const float a = __uint_as_float(x[i] << 16), b = __uint_as_float(x[i] & 0xffff0000u);
    mn = fminf(mn, fminf(a, b));
    mx = fmaxf(mx, fmaxf(a, b));
  }
#pragma unroll
  for (int mask = 1; mask < 4; mask <<= 1) {
    mn = fminf(mn, __shfl_xor_sync(~0u, mn, mask));
    mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, mask));
  }
  if (part == 0) scaled[token] = scale_of(mn, mx, &pairs[token]);
}

/// A word of codes in fragment order. D: as in load_rows.
template <int D>
__device__ uint32_t code_word(const uint16_t* rows, const Scaled* scaled, int head_dim, int group, bool is_v,
                              int word) {
  const int d = D ? D : head_dim, stride = d + 2, n_groups = D ? 1 : d / group;
  uint32_t out = 0;
#pragma unroll
  for (int f = 0; f < 4; f++)
#pragma unroll
    for (int byte = 0; byte < 4; byte++) {
      const CodeOf of = is_v ? packed_v_of(d, word, f, byte) : packed_k_of(d, word, f, byte);
      const Scaled& s = scaled[n_groups == 1 ? of.token : of.token * n_groups + of.channel / group];
      out |= static_cast<uint32_t>(code_of(widen(rows[of.token * stride + of.channel]), s))
             << (8 * byte + 2 * f);
    }
  return out;
}
/// Four bytes of canonical codes.
__device__ uint32_t canonical_word(const uint16_t* rows, const Scaled* scaled, int d, int group, int word) {
  const int token = word / (d / 16), first = word % (d / 16) * 16;
  uint32_t out = 0;
  for (int c = 0; c < 16; c++)
    out |= static_cast<uint32_t>(code_of(widen(rows[token * (d + 2) + first + c]),
                                         scaled[token * (d / group) + (first + c) / group]))
           << (2 * c);
  return out;
}

/// D: head_dim in one group, in fragment order; 0: any.
template <int D>
__global__ void __launch_bounds__(kThreads)
    demote_kernel(Pool full, Pool packed, const DemotePage* pages, int d, int group, int clip_k, int clip_v,
                  int first_side) {
  extern __shared__ char shared[];
  const bool is_v = first_side + blockIdx.z;
  const int head = blockIdx.y, n_groups = d / group, stride = d + 2;
  auto* rows = reinterpret_cast<uint16_t*>(shared);
  auto* scaled = reinterpret_cast<Scaled*>(shared + (kPage * stride * 2 + 15) / 16 * 16);
  const DemotePage page = pages[blockIdx.x];
  const auto* from = reinterpret_cast<const uint16_t*>(full.head(page.full, head)) + (is_v ? kPage * d : 0);
  std::byte* to = packed.head(page.packed, head);
  const int codes_bytes = kPage * d / 4, params_bytes = kPage * n_groups * 4;

  load_rows<D>(from, rows, d, is_v);
  __syncthreads();
  const int clip = is_v ? clip_v : clip_k;
  auto* pairs = reinterpret_cast<__half2*>(to + 2 * codes_bytes + (is_v ? params_bytes : 0));
  if constexpr (D != 0) {
    clip_and_scale<D / 8>(rows, stride, clip, scaled, pairs);
  } else {
    if (clip >= 0) clip_rows(rows, d, stride, clip);
    __syncthreads();
    for (int i = threadIdx.x; i < kPage * n_groups; i += kThreads)
      scaled[i] = scale_group(rows + i / n_groups * stride + i % n_groups * group, group, &pairs[i]);
  }
  __syncthreads();
  auto* codes = reinterpret_cast<uint32_t*>(to + (is_v ? codes_bytes : 0));
  for (int word = threadIdx.x; word < codes_bytes / 4; word += kThreads) {
    if (D != 0 || fragments_packed(d, group))
      codes[word] = code_word<D>(rows, scaled, d, group, is_v, word);
    else
      codes[word] = canonical_word(rows, scaled, d, group, word);
  }
}

}  // namespace

void launch_append(const float* k, const float* v, Pool full, const AppendRow* rows, int n_rows,
                   int n_kv_heads, int head_dim, cudaStream_t stream) {
  append_kernel<<<n_rows, 256, 0, stream>>>(k, v, full, rows, n_kv_heads, head_dim);
}

void launch_demote(Pool full, Pool packed, const DemotePage* pages, int n_pages, int n_kv_heads, int head_dim,
                   int group, int clip_k, int clip_v, int sides, cudaStream_t stream) {
  if (demotes_fragments(head_dim, group))
    return launch_demote_fragments(full, packed, pages, n_pages, n_kv_heads, head_dim, clip_k, clip_v, sides,
                                   stream);
  const size_t shared = (kPage * (head_dim + 2) * 2 + 15) / 16 * 16 +
                        static_cast<size_t>(kPage) * (head_dim / group) * sizeof(Scaled);
  auto* kernel = head_dim != group ? demote_kernel<0>
                 : head_dim == 80  ? demote_kernel<80>
                 : head_dim == 96  ? demote_kernel<96>
                 : head_dim == 112 ? demote_kernel<112>
                                   : demote_kernel<0>;
  if (shared > 48 * 1024)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  kernel<<<dim3(n_pages, n_kv_heads, sides == 3 ? 2 : 1), kThreads, shared, stream>>>(
      full, packed, pages, head_dim, group, clip_k, clip_v, sides == 2);
}

}  // namespace kv2::cuda
