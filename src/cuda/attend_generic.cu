// SPDX-License-Identifier: Apache-2.0
// Attention for the head dims and groups that attend.cu has no tiles for: one block per query and head walks
// all pages in order, f32 arithmetic, packed pages canonical. Right and invariant; slow, and it splits
// nothing.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/fragment.h"
#include "cuda/kernels.h"

namespace kv2::cuda {
namespace {

constexpr int kPage = 64, kThreads = 128;
constexpr int kMaxChannelsPerThread = 4;  // head_dim <= 512

/// K or V of a head page in whichever form, element by element.
struct PageReader {
  const std::byte* page;
  bool packed, is_v;
  int d, group;

  __device__ float operator()(int token, int channel) const {
    if (!packed) {
      const auto* x = reinterpret_cast<const __nv_bfloat16*>(page) + (is_v ? kPage * d : 0);
      return __bfloat162float(x[is_v ? full_v_at(d, token, channel) : full_k_at(d, token, channel)]);
    }
    const int codes_bytes = kPage * d / 4, n_groups = d / group;
    const auto* codes = reinterpret_cast<const uint8_t*>(page) + (is_v ? codes_bytes : 0);
    const auto* params =
        reinterpret_cast<const __half2*>(page + 2 * codes_bytes + (is_v ? kPage * n_groups * 4 : 0));
    const float2 p = __half22float2(params[token * n_groups + channel / group]);
    int code;
    if (fragments_packed(d, group)) {
      const CodeAt at = is_v ? packed_v_at(d, token, channel) : packed_k_at(d, token, channel);
      code = reinterpret_cast<const uint32_t*>(codes)[at.word] >> at.bit & 3;
    } else {
      code = codes[token * (d / 4) + channel / 4] >> (2 * (channel % 4)) & 3;
    }
    return fmaf(p.x, static_cast<float>(code), p.y);
  }
};

__global__ void __launch_bounds__(kThreads) attend_generic_kernel(const AttendArgs args) {
  const AttendTile tile = args.tiles[blockIdx.x];
  const int kv_head = blockIdx.y, pair = blockIdx.z, d = args.head_dim;
  if (pair >= tile.n_queries * tile.n_heads) return;
  const int query = pair / tile.n_heads,
            head = kv_head * args.q_per_kv + tile.first_head + pair % tile.n_heads;
  const size_t at =
      (static_cast<size_t>(tile.first_row + query) * args.n_kv_heads * args.q_per_kv + head) * d;
  __shared__ float q[512], weights[kPage], halves[kPage];
  for (int i = threadIdx.x; i < d; i += kThreads) q[i] = args.q[at + i];
  __syncthreads();
  float o[kMaxChannelsPerThread] = {}, m = -1e30f, l = 0;
  const int token = threadIdx.x % kPage, half = threadIdx.x / kPage;
  for (int page = 0; page <= tile.query_page; page++) {
    const bool packed = page >= tile.packed_begin && page < tile.packed_end;
    const int32_t slot = packed ? tile.packed_pages[page] : tile.full_pages[page];
    const std::byte* memory = packed ? args.packed.head(slot, kv_head) : args.full.head(slot, kv_head);
    const int n_tokens = page == tile.query_page ? tile.first_in_page + query + 1 : kPage;
    const PageReader k{memory, packed, false, d, args.group}, v{memory, packed, true, d, args.group};
    float dot = 0;
    if (token < n_tokens)
      for (int i = half * (d / 2); i < (half + 1) * (d / 2); i++) dot = fmaf(q[i], k(token, i), dot);
    if (half) halves[token] = dot;
    __syncthreads();
    if (!half) {
      float s = (dot + halves[token]) * args.softmax_scale;
      if (args.soft_cap > 0) s = args.soft_cap * tanhf(s / args.soft_cap);
      weights[token] = token < n_tokens ? s : -INFINITY;
    }
    __syncthreads();
    float n = m;
    for (int i = 0; i < n_tokens; i++) n = fmaxf(n, weights[i]);
    const float r = expf(m - n);
    m = n;
    l *= r;
    for (int c = 0; c < kMaxChannelsPerThread; c++) o[c] *= r;
    for (int i = 0; i < n_tokens; i++) {
      const float e = expf(weights[i] - m);
      l += e;
      for (int c = 0; c < kMaxChannelsPerThread; c++) {
        const int channel = threadIdx.x + c * kThreads;
        if (channel < d) o[c] = fmaf(e, v(i, channel), o[c]);
      }
    }
    __syncthreads();
  }
  for (int c = 0; c < kMaxChannelsPerThread; c++) {
    const int channel = threadIdx.x + c * kThreads;
    if (channel < d) args.out[at + channel] = __fdiv_rn(o[c], l);
  }
}

}  // namespace

void launch_attend_generic(const AttendArgs& args, cudaStream_t stream) {
  attend_generic_kernel<<<dim3(args.n_tiles, args.n_kv_heads, 8), kThreads, 0, stream>>>(args);
}

}  // namespace kv2::cuda
