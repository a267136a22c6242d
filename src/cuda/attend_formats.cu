// SPDX-License-Identifier: Apache-2.0
// Attention over layers whose packed pages are not int2 head pages (PackedSide): a block takes a segment of
// one tile's runs, decodes K, then V of each page to f32 in shared memory, and multiplies there. Any head_dim
// up to 512. Runs, and the order in which they are merged, are those of attend_kernel.cuh, so that a query's
// bits depend on page numbers alone. Right and split over the GPU, but without tensor cores: about a sixtieth
// of what int2 reaches.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/attend_shape.cuh"
#include "cuda/fragment.h"
#include "cuda/kernels.h"

namespace kv2::cuda {
namespace {

constexpr int kPage = 64, kThreads = 128, NP = kFormatPairs;
constexpr float kLog2e = 1.4426950408889634f, kLowest = -1e30f;

/// total = total ⊕ partial of one channel.
struct Softmax {
  float m, l, o;
  __device__ void add(const Softmax& x) {
    const float n = fmaxf(m, x.m), a = exp2f(__fsub_rn(m, n)), b = exp2f(__fsub_rn(x.m, n));
    m = n;
    l = __fmaf_rn(b, x.l, __fmul_rn(a, l));
    o = __fmaf_rn(b, x.o, __fmul_rn(a, o));
  }
  __device__ float result() const { return __fdiv_rn(o, l); }
};

__device__ float code_at(const uint8_t* codes, int index, int bits) {
  const int bit = index * bits;
  uint32_t word = codes[bit >> 3];
  if ((bit & 7) + bits > 8) word |= static_cast<uint32_t>(codes[(bit >> 3) + 1]) << 8;
  return static_cast<float>(word >> (bit & 7) & ((1u << bits) - 1));
}

/// A page's rows of one side, f32, row stride d + 1: neighbouring channels and neighbouring tokens both lie
/// in different banks.
struct PageRows {
  float* rows;
  int d;

  __device__ void load_full(const std::byte* head, bool is_v, int n_rows) const {
    const auto* x = reinterpret_cast<const __nv_bfloat16*>(head) + (is_v ? kPage * d : 0);
    for (int i = threadIdx.x; i < kPage * d; i += kThreads) {
      const int token = i / d, c = i % d;
      rows[token * (d + 1) + c] =
          token < n_rows ? __bfloat162float(x[is_v ? full_v_at(d, token, c) : full_k_at(d, token, c)]) : 0.0f;
    }
  }
  __device__ void load_packed(const PackedSide& side, const std::byte* page, int kv_head) const {
    const std::byte* begin = page + side.begin;
    const std::byte* head = begin + side.first_head + kv_head * side.head_bytes;
    if (side.codec == PackedSide::kRows) {
      const auto* x = reinterpret_cast<const __nv_bfloat16*>(head);
      for (int i = threadIdx.x; i < kPage * d; i += kThreads)
        rows[i / d * (d + 1) + i % d] = __bfloat162float(x[i]);
      return;
    }
    // codes stand in lines of one token's channels, or of one channel's tokens
    const bool by_token = side.codec == PackedSide::kAffine;
    const int width = by_token ? d : kPage, n_groups = width / side.group;
    const auto* codes = reinterpret_cast<const uint8_t*>(head);
    const auto* params = reinterpret_cast<const __half*>(head + side.codes_bytes);
    const auto* norms = reinterpret_cast<const float*>(begin);
    for (int i = threadIdx.x; i < kPage * d; i += kThreads) {
      const int line = i / width, at = i % width, token = by_token ? line : at, c = by_token ? at : line;
      const __half* p = params + (line * n_groups + at / side.group) * side.params();
      const float scale = __half2float(p[0]), offset = side.offset == PackedSide::kStored
                                                           ? __half2float(p[1])
                                                           : side.implied_offset(scale);
      const float x = fmaf(scale, code_at(codes, i, side.bits), offset);
      rows[token * (d + 1) + c] = side.norm ? x * norms[token] : x;
    }
  }
};

/// Partials of a tile's runs, [runs][NP · (d + 2)]: o, then m, then l.
struct Partials {
  float* base;
  int d;
  __device__ float* run(int i) const { return base + static_cast<size_t>(i) * NP * (d + 2); }
};

/// A thread has channels threadIdx.x + 128·i of all NP pairs.
template <int kChannels>
__global__ void __launch_bounds__(kThreads)
    attend_formats_kernel(const AttendArgs args, const PackedSide k_side, const PackedSide v_side) {
  extern __shared__ __align__(16) float shared[];
  constexpr int kLanes = kThreads / NP;  // of a pair's softmax
  const int d = args.head_dim;
  float* q = shared;            // [d][NP]
  float* weights = q + d * NP;  // [64][NP]: logits, then weights
  float* halves = weights + kPage * NP;
  float* factors = halves + kPage * NP;  // [NP]
  const PageRows rows{factors + NP, d};
  const AttendSegment segment = args.segments[blockIdx.x];
  if (segment.end_run == 0) return;
  const AttendTile& tile = segment.tile;
  const int kv_head = segment.kv_head, n_pairs = tile.n_queries * tile.n_heads;
  const Runs runs{tile.query_page};
  const bool whole = !args.partials;
  const auto query_of = [&](int pair) { return min(pair, n_pairs - 1) / tile.n_heads; };
  const auto row_of = [&](int pair) {  // an absent pair is the last one, and is not written
    const int p = min(pair, n_pairs - 1);
    return (static_cast<size_t>(tile.first_row + p / tile.n_heads) * args.n_kv_heads + kv_head) *
               args.q_per_kv +
           tile.first_head + p % tile.n_heads;
  };
  for (int i = threadIdx.x; i < NP * d; i += kThreads)
    q[i % d * NP + i / d] = args.q[row_of(i / d) * d + i % d];
  const int token = threadIdx.x % kPage, half = threadIdx.x / kPage;
  const int own_pair = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const Partials partials{args.partials + static_cast<size_t>(segment.owner) * args.max_runs * NP * (d + 2),
                          d};
  Softmax total[NP][kChannels];

  for (int run = segment.first_run; run < segment.end_run; run++) {
    float o[NP][kChannels] = {}, m = kLowest, l = 0;  // m and l of own_pair
    const int end = runs.end(run);
    for (int page = runs.begin(run); page < end; page++) {
      const bool packed = page >= tile.packed_begin && page < tile.packed_end, own = page == tile.query_page;
      const int n_rows = own ? tile.first_in_page + tile.n_queries : kPage;
      const std::byte* memory =
          packed ? args.packed.base + static_cast<size_t>(tile.packed_pages[page]) * args.packed.page_bytes
                 : args.full.head(tile.full_pages[page], kv_head);
      __syncthreads();  // the page before has been used
      if (packed)
        rows.load_packed(k_side, memory, kv_head);
      else
        rows.load_full(memory, false, n_rows);
      __syncthreads();
      float dot[NP] = {};
      const float* key = rows.rows + token * (d + 1);
      for (int c = half * (d / 2); c < (half + 1) * (d / 2); c++)
#pragma unroll
        for (int p = 0; p < NP; p++) dot[p] = fmaf(key[c], q[c * NP + p], dot[p]);
      if (half)
#pragma unroll
        for (int p = 0; p < NP; p++) halves[token * NP + p] = dot[p];
      __syncthreads();
      if (!half)
#pragma unroll
        for (int p = 0; p < NP; p++) {
          float s = (dot[p] + halves[token * NP + p]) * args.softmax_scale;
          if (args.soft_cap > 0) s = args.soft_cap * tanhf(s / args.soft_cap);
          const int last = own ? tile.first_in_page + query_of(p) : kPage;
          weights[token * NP + p] = token <= last ? s * kLog2e : -INFINITY;
        }
      __syncthreads();
      float largest = kLowest;
      for (int t = lane; t < kPage; t += kLanes) largest = fmaxf(largest, weights[t * NP + own_pair]);
#pragma unroll
      for (int mask = kLanes / 2; mask; mask >>= 1)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
      const float n = fmaxf(m, largest), r = exp2f(m - n);
      m = n;
      float sum = 0;
      for (int t = lane; t < kPage; t += kLanes) {
        const float e = exp2f(weights[t * NP + own_pair] - m);
        weights[t * NP + own_pair] = e;
        sum += e;
      }
#pragma unroll
      for (int mask = kLanes / 2; mask; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
      l = fmaf(l, r, sum);
      if (lane == 0) factors[own_pair] = r;
      if (packed)
        rows.load_packed(v_side, memory, kv_head);
      else
        rows.load_full(memory, true, n_rows);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kChannels; i++) {
        const int c = threadIdx.x + i * kThreads;
        if (c >= d) break;
#pragma unroll
        for (int p = 0; p < NP; p++) o[p][i] *= factors[p];
        for (int t = 0; t < kPage; t++) {
          const float value = rows.rows[t * (d + 1) + c];
#pragma unroll
          for (int p = 0; p < NP; p++) o[p][i] = fmaf(weights[t * NP + p], value, o[p][i]);
        }
      }
    }
    // the run's m and l, through shared memory
    __syncthreads();
    if (lane == 0) {
      halves[own_pair] = m;
      halves[NP + own_pair] = l;
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < NP; p++)
#pragma unroll
      for (int i = 0; i < kChannels; i++) {
        const int c = threadIdx.x + i * kThreads;
        if (c >= d) break;
        const Softmax s{halves[p], halves[NP + p], o[p][i]};
        if (!whole) {
          float* to = partials.run(run);
          to[p * d + c] = s.o;
          if (c == 0) to[NP * d + p] = s.m, to[NP * (d + 1) + p] = s.l;
        } else if (run == 0) {
          total[p][i] = s;
        } else {
          total[p][i].add(s);
        }
      }
  }
  if (!whole) return;
#pragma unroll
  for (int p = 0; p < NP; p++)
#pragma unroll
    for (int i = 0; i < kChannels; i++) {
      const int c = threadIdx.x + i * kThreads;
      if (c < d && p < n_pairs) args.out[row_of(p) * d + c] = total[p][i].result();
    }
}

/// All runs of all tiles, in order.
__global__ void __launch_bounds__(kThreads) merge_formats_kernel(const AttendArgs args) {
  const AttendTile tile = args.tiles[blockIdx.x];
  const int d = args.head_dim, kv_head = blockIdx.y, n_pairs = tile.n_queries * tile.n_heads;
  const Partials partials{args.partials + (static_cast<size_t>(blockIdx.x) * args.n_kv_heads + kv_head) *
                                              args.max_runs * NP * (d + 2),
                          d};
  for (int i = blockIdx.z * kThreads + threadIdx.x; i < n_pairs * d; i += kThreads * gridDim.z) {
    const int p = i / d;
    Softmax total{};
    for (int run = 0; run < Runs{tile.query_page}.count(); run++) {
      const float* from = partials.run(run);
      const Softmax s{from[NP * d + p], from[NP * (d + 1) + p], from[i]};
      if (run == 0)
        total = s;
      else
        total.add(s);
    }
    const size_t row =
        (static_cast<size_t>(tile.first_row + p / tile.n_heads) * args.n_kv_heads + kv_head) * args.q_per_kv +
        tile.first_head + p % tile.n_heads;
    args.out[row * d + i % d] = total.result();
  }
}

template <int kChannels>
void launch(const AttendArgs& args, const PackedSide& k, const PackedSide& v, cudaStream_t stream) {
  const int d = args.head_dim;
  const int shared = static_cast<int>(sizeof(float)) * (d * NP + 2 * kPage * NP + NP + kPage * (d + 1));
  cudaFuncSetAttribute(attend_formats_kernel<kChannels>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  attend_formats_kernel<kChannels>
      <<<args.n_blocks + args.n_tiles * args.n_kv_heads, kThreads, shared, stream>>>(args, k, v);
  if (args.partials)
    merge_formats_kernel<<<dim3(args.n_tiles, args.n_kv_heads, 4), kThreads, 0, stream>>>(args);
}

}  // namespace

void launch_attend_formats(const AttendArgs& args, const PackedSide& k, const PackedSide& v,
                           cudaStream_t stream) {
  if (args.head_dim <= 128) return launch<1>(args, k, v, stream);
  if (args.head_dim <= 256) return launch<2>(args, k, v, stream);
  launch<4>(args, k, v, stream);
}

}  // namespace kv2::cuda
