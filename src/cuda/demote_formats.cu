// SPDX-License-Identifier: Apache-2.0
// demote for pages that are not int2 head pages: the coder `round` of quant/round_group.cpp with range=minmax
// into the canonical bytes of quant/affine, quant/channel and quant/bf16, bit for bit (compiled with
// -fmad=false). A thread has a token's or a channel's values; nothing here is tuned.
#include <cuda_fp16.h>

#include "cuda/fragment.h"
#include "cuda/kernels.h"
#include "cuda/round_coder.cuh"

namespace kv2::cuda {
namespace {

constexpr int kPage = 64;

/// The 64 rows of one side of a head page in shared memory, made finite (`raw`: as they are).
struct Rows {
  uint16_t* values;
  int stride;  // d + 2: rows begin in different banks

  __device__ Rows(uint16_t* shared, int d) : values(shared), stride(d + 2) {}
  __device__ void load(const std::byte* head, int d, bool is_v, bool raw) const {
    const auto* page = reinterpret_cast<const uint16_t*>(head) + (is_v ? kPage * d : 0);
    for (int i = threadIdx.x; i < kPage * d; i += blockDim.x) {
      const int token = i / d, c = i % d;
      const uint16_t x = page[is_v ? full_v_at(d, token, c) : full_k_at(d, token, c)];
      values[token * stride + c] = raw ? x : finite_bits(x);
    }
    __syncthreads();
  }
  __device__ float at(int token, int c) const { return widen(values[token * stride + c]); }
};

__device__ float clamped(float x, float low, float high) {
  return fminf(fmaxf(x, low), high);
}

struct Fit {
  float scale, offset;
  bool constant;
};

/// fit_group for n values x(i); leaves what is stored in params.
template <class Value>
__device__ Fit fit_group(const PackedSide& side, int n, const Value& x, __half* params) {
  float low = x(0), high = low, most = 0;
  bool constant = true;
  for (int i = 0; i < n; i++) {
    const float v = x(i);
    low = fminf(low, v);
    high = fmaxf(high, v);
    most = fmaxf(most, fabsf(v));
    constant = constant && v == x(0);
  }
  const float top = static_cast<float>(side.top());
  if (side.offset != PackedSide::kStored) {
    const float above =
        side.offset == PackedSide::kSymmetric ? static_cast<float>((1 << (side.bits - 1)) - 1) : top / 2;
    params[0] = __float2half_rn(clamped(__fdiv_rn(most, above), 0x1p-24f, 65504.0f));
    const float scale = __half2float(params[0]);
    return {scale, side.implied_offset(scale), false};
  }
  low = __fadd_rn(low, 0.0f);  // -0 becomes +0
  params[0] = __float2half_rn(clamped(__fdiv_rn(__fsub_rn(high, low), top), 0x1p-24f, 65504.0f));
  params[1] = __float2half_rn(clamped(low, -65504.0f, 65504.0f));
  return {__half2float(params[0]), __half2float(params[1]), constant};
}

__device__ uint32_t code_of(float x, const Fit& fit, int top) {
  if (fit.constant) return 0;
  const float level = __fadd_rn(__fdiv_rn(__fsub_rn(x, fit.offset), fit.scale), 0.5f);
  return static_cast<uint32_t>(level > 0 ? (level < top ? level : static_cast<float>(top)) : 0.0f);
}

/// A bit string, written byte by byte.
struct BitWriter {
  uint8_t* to;
  uint32_t word = 0;
  int n = 0;
  __device__ void put(uint32_t code, int bits) {
    word |= code << n;
    n += bits;
    for (; n >= 8; n -= 8, word >>= 8) *to++ = static_cast<uint8_t>(word);
  }
};

/// Element `index` of |x| ascending of a row: magnitudes of bf16 order as integers.
__device__ float order_statistic(const Rows& rows, int token, int d, int index) {
  uint32_t low = 0;  // smallest t with more than `index` elements <= t
  for (uint32_t bit = 0x4000; bit; bit >>= 1) {
    int count = 0;
    for (int c = 0; c < d; c++) count += (rows.values[token * rows.stride + c] & 0x7fffu) <= low + bit - 1;
    if (count <= index) low += bit;
  }
  return widen(static_cast<uint16_t>(low));
}

__device__ void code_rows(const PackedSide& side, const Rows& rows, int d, int clip_index, std::byte* head) {
  const int token = threadIdx.x, n_groups = d / side.group;
  if (token >= kPage) return;
  const float bound = clip_index < 0 ? INFINITY : order_statistic(rows, token, d, clip_index);
  auto* params = reinterpret_cast<__half*>(head + side.codes_bytes) +
                 static_cast<size_t>(token) * n_groups * side.params();
  BitWriter codes{reinterpret_cast<uint8_t*>(head) + token * (side.codes_bytes / kPage)};
  for (int g = 0; g < n_groups; g++, params += side.params()) {
    const auto x = [&](int i) { return clamped(rows.at(token, g * side.group + i), -bound, bound); };
    const Fit fit = fit_group(side, side.group, x, params);
    for (int i = 0; i < side.group; i++) codes.put(code_of(x(i), fit, side.top()), side.bits);
  }
}

__device__ void code_channels(const PackedSide& side, const Rows& rows, int d, const float* norms,
                              std::byte* head) {
  const int n_groups = kPage / side.group;
  for (int c = threadIdx.x; c < d; c += blockDim.x) {
    auto* params = reinterpret_cast<__half*>(head + side.codes_bytes) +
                   static_cast<size_t>(c) * n_groups * side.params();
    BitWriter codes{reinterpret_cast<uint8_t*>(head) + c * (side.codes_bytes / d)};
    for (int g = 0; g < n_groups; g++, params += side.params()) {
      const auto x = [&](int i) {
        const int token = g * side.group + i;
        return side.norm ? __fdiv_rn(rows.at(token, c), norms[token]) : rows.at(token, c);
      };
      const Fit fit = fit_group(side, side.group, x, params);
      for (int i = 0; i < side.group; i++) codes.put(code_of(x(i), fit, side.top()), side.bits);
    }
  }
}

/// Norms of a page's tokens over all KV heads: sums in order of heads and channels.
__global__ void token_norms_kernel(Pool full, std::byte* packed, size_t page_bytes, const DemotePage* pages,
                                   PackedSide side, int n_kv_heads, int d, bool is_v) {
  extern __shared__ uint16_t shared[];
  const Rows rows(shared, d);
  const DemotePage page = pages[blockIdx.x];
  float square = 0;
  for (int h = 0; h < n_kv_heads; h++) {
    rows.load(full.head(page.full, h), d, is_v, false);
    if (threadIdx.x < kPage)
      for (int c = 0; c < d; c++) {
        const float x = rows.at(threadIdx.x, c);
        square = __fadd_rn(square, __fmul_rn(x, x));
      }
    __syncthreads();
  }
  if (threadIdx.x >= kPage) return;
  const float norm = __fsqrt_rn(square);
  auto* norms = reinterpret_cast<float*>(packed + static_cast<size_t>(page.packed) * page_bytes + side.begin);
  norms[threadIdx.x] = norm > 0 ? fminf(norm, 0x1.FEp127f) : 1.0f;
}

__global__ void demote_side_kernel(Pool full, std::byte* packed, size_t page_bytes, const DemotePage* pages,
                                   PackedSide side, int d, int clip_index, bool is_v) {
  extern __shared__ uint16_t shared[];
  const Rows rows(shared, d);
  const DemotePage page = pages[blockIdx.x];
  const int kv_head = blockIdx.y;
  std::byte* begin = packed + static_cast<size_t>(page.packed) * page_bytes + side.begin;
  std::byte* head = begin + side.first_head + kv_head * side.head_bytes;
  rows.load(full.head(page.full, kv_head), d, is_v, side.codec == PackedSide::kRows);
  if (side.codec == PackedSide::kRows) {
    for (int i = threadIdx.x; i < kPage * d; i += blockDim.x)
      reinterpret_cast<uint16_t*>(head)[i] = rows.values[i / d * rows.stride + i % d];
  } else if (side.codec == PackedSide::kAffine) {
    code_rows(side, rows, d, clip_index, head);
  } else {
    code_channels(side, rows, d, reinterpret_cast<const float*>(begin), head);
  }
}

}  // namespace

void launch_demote_side(Pool full, std::byte* packed, size_t page_bytes, const DemotePage* pages, int n_pages,
                        const PackedSide& side, int n_kv_heads, int head_dim, int clip_index, bool is_v,
                        cudaStream_t stream) {
  const int shared = kPage * (head_dim + 2) * 2, threads = 128;
  cudaFuncSetAttribute(token_norms_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  cudaFuncSetAttribute(demote_side_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (side.norm)
    token_norms_kernel<<<n_pages, threads, shared, stream>>>(full, packed, page_bytes, pages, side,
                                                             n_kv_heads, head_dim, is_v);
  demote_side_kernel<<<dim3(n_pages, n_kv_heads), threads, shared, stream>>>(
      full, packed, page_bytes, pages, side, head_dim, clip_index, is_v);
}

}  // namespace kv2::cuda
