// SPDX-License-Identifier: Apache-2.0
// Attention over full and packed pages for few queries at a time (docs/kernels/attend.md); prefill_kernel.cuh
// has the same bits for many. A block of eight warps takes one run of pages of one tile; warp w takes every
// eighth packed page from w on, and of the full pages tokens 16(w % 4) to 16(w % 4) + 15 of every second one.
// What a warp sees, in which order, and how results are merged depends on page numbers alone, and a column of
// an mma on nothing but itself: a query's bits depend neither on its batch nor on its chunk. Pages come
// through a ring of stages in shared memory, copied ahead; a full page's 16 tokens are a stage of keys and a
// stage of values.
#pragma once

#include "cuda/attend_full.cuh"
#include "cuda/attend_launch.h"
#include "cuda/attend_packed.cuh"

namespace kv2::cuda {
namespace {

using namespace attention;

static_assert(kMaxRunPages == 64 && kWarps == 8, "a lane for each full page of a run that a warp may meet");
constexpr int kThreads = kWarps * 32;

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

/// total = total ⊕ partial of one channel.
struct Softmax {
  float m, l, o;
  __device__ void add(const Softmax& x) {
    const Worth worth(m, x.m);
    m = worth.m;
    l = worth.sum(l, x.l);
    o = worth.sum(o, x.o);
  }
  __device__ float result() const { return __fdiv_rn(o, l); }
};

/// What a warp keeps: its queries in both forms of the pages, and its sums.
template <int D, int NT, bool kCapped>
struct Warp {
  using S = Shape<D>;
  PackedPages<D, NT, kCapped> packed;
  FullPages<D, NT, kCapped> full;
  Sums<D, NT> sums;

  __device__ Warp(const AttendArgs& args, const AttendTile& tile) : packed(args), full(args, tile) {}

  /// Writes the sums of a run.
  __device__ void finish(float (*out)[D], float* out_m, float* out_l) {
    const int g = packed.g, t = packed.t;
    sums.close();
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      const int pair = 4 * nt + t;
#pragma unroll
      for (int i = 0; i < S::kTiles; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) out[pair][16 * i + g + 8 * r] = sums.o[nt][i][r];
      if (g == 0) {
        out_m[pair] = sums.m[nt];
        out_l[pair] = sums.l[nt];
      }
    }
  }
};

/// A warp's ring: stages are filled in the order in which they are asked for and read in that order.
template <int D, int NT>
struct Ring {
  static constexpr int kStages = Shared<D, NT>::kStages;
  Shared<D, NT>& shared;
  const int w, lane;
  uint32_t filled = 0, read = 0;

  __device__ void fill(const std::byte* from, int bytes) {
    const int stage = filled++ % kStages;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (lane == 0) copy_page(shared.ring[w][stage], from, bytes, &shared.full[w][stage]);
#else
    for (int at = lane * 16; at < bytes; at += 512) copy16(&shared.ring[w][stage][at], from + at);
    asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
  }
  __device__ const unsigned char* wait() {
    const int stage = read % kStages;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    wait_barrier(&shared.full[w][stage], (read / kStages) & 1);
#else
    const uint32_t behind = filled - read - 1;  // stages that may still be on their way
    if (behind >= 2)
      asm volatile("cp.async.wait_group 2;\n" ::: "memory");
    else if (behind == 1)
      asm volatile("cp.async.wait_group 1;\n" ::: "memory");
    else
      asm volatile("cp.async.wait_group 0;\n" ::: "memory");
    __syncwarp();
#endif
    read++;
    return shared.ring[w][stage];
  }
};

/// One warp's part of a block's runs: in each its packed pages, then its tokens of the full ones. Copies run
/// ahead over the boundaries of runs.
template <int D, int NT, bool kCapped>
struct Part {
  using S = Shape<D>;
  Ring<D, NT>& ring;
  const AttendArgs& args;
  const AttendTile& tile;
  const int kv_head, w, end_run;
  // of the run that is being copied and of the one after it: slots of the lane-th packed and full page
  int fill_run;
  int32_t packed_slot = 0, full_slot = 0, next_packed_slot = 0, next_full_slot = 0;
  uint32_t packed_left = 0, full_left = 0;  // a bit for each page still to copy
  bool values_next = false;

  __device__ Part(Ring<D, NT>& r, const AttendArgs& a, const AttendTile& ti, int kv_head_, int first, int end)
      : ring(r), args(a), tile(ti), kv_head(kv_head_), w(r.w), end_run(end), fill_run(first - 1) {
    find_next();
    open_next();
#pragma unroll 1
    for (int i = 0; i < Ring<D, NT>::kStages; i++) fill();
  }

  __device__ bool is_packed(int page) const {
    return page >= tile.packed_begin && page < tile.packed_end;
  }
  __device__ int full_page(int run, int i) const {
    return run_begin(run) + 2 * i + w / 4;
  }
  __device__ int end_of(int run) const {
    return min(run_begin(run + 1), tile.query_page + 1);
  }
  __device__ bool has_packed(int run) const {  // the lane-th packed page
    const int page = run_begin(run) + kWarps * ring.lane + w;
    return page < end_of(run) && is_packed(page);
  }
  __device__ bool has_full(int run) const {
    const int page = full_page(run, ring.lane);
    return page < end_of(run) && !is_packed(page);
  }

  __device__ void find_next() {
    const int run = fill_run + 1;
    if (run >= end_run) return;
    if (has_packed(run))
      next_packed_slot = __ldg(tile.packed_pages + run_begin(run) + kWarps * ring.lane + w);
    if (has_full(run)) next_full_slot = __ldg(tile.full_pages + full_page(run, ring.lane));
  }
  __device__ void open_next() {
    fill_run++;
    packed_slot = next_packed_slot;
    full_slot = next_full_slot;
    packed_left = __ballot_sync(~0u, has_packed(fill_run));
    full_left = __ballot_sync(~0u, has_full(fill_run));
    find_next();
  }
  __device__ void fill() {
    while (!(packed_left | full_left)) {
      if (fill_run + 1 >= end_run) return;
      open_next();
    }
    if (packed_left) {
      const int32_t slot = __shfl_sync(~0u, packed_slot, __ffs(packed_left) - 1);
      ring.fill(args.packed.head(slot, kv_head), S::kBytes);
      packed_left &= packed_left - 1;
    } else {
      const int32_t slot = __shfl_sync(~0u, full_slot, __ffs(full_left) - 1);
      ring.fill(args.full.head(slot, kv_head) + (values_next ? kPage * D * 2 : 0) + w % 4 * S::kFullTile,
                S::kFullTile);
      if (values_next) full_left &= full_left - 1;
      values_next = !values_next;
    }
  }
  __device__ void go_through(int run, Warp<D, NT, kCapped>& warp, const uint2 (*q)[S::kTiles][32]) {
#pragma unroll 1
    for (int left = __popc(__ballot_sync(~0u, has_packed(run))); left > 0; left--) {
      warp.packed.take(ring.wait(), warp.sums);
      __syncwarp();  // all lanes have read the stage
      fill();
    }
#pragma unroll 1
    for (uint32_t left = __ballot_sync(~0u, has_full(run)); left; left &= left - 1) {
      const bool own = full_page(run, __ffs(left) - 1) == tile.query_page;
      uint32_t p[NT][2];
      float worth[NT];
      warp.full.keys(
          ring.wait(), w % 4, own, [&](int nt, int i) { return q[nt][i][ring.lane]; }, warp.sums, p, worth);
      __syncwarp();
      fill();
      warp.full.values(ring.wait(), w % 4, own, p, worth, warp.sums);
      __syncwarp();
      fill();
    }
  }
};

/// B fragments for full pages, written once for a block.
template <int D, int NT>
__device__ void prepare_full(const Pairs<D>& pairs, uint2 (*out)[Shape<D>::kTiles][32]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int nt = 0; nt < NT; nt++) {
    const int pair = 4 * nt + (lane >> 3);
    const float* row = pairs.q_row(pair);
    for (int i = threadIdx.x / 32; i < Shape<D>::kTiles; i += kWarps)
      out[nt][i][lane] = q_fragment(row, i, pair < pairs.n());
  }
}

/// How the warps' results of a run are merged, from warp 0 on, as Softmax::add would: factors of what is
/// there and of what comes. By one thread of each pair.
template <int D, int NT>
__device__ void prepare_merge(Shared<D, NT>& shared, int pair) {
  float m = shared.warps.m[0][pair], l = shared.warps.l[0][pair];
#pragma unroll
  for (int w = 1; w < kWarps; w++) {
    const Worth worth(m, shared.warps.m[w][pair]);
    m = worth.m;
    l = worth.sum(l, shared.warps.l[w][pair]);
    shared.factors[w][pair] = {worth.before, worth.added};
  }
  shared.m[pair] = m;
  shared.l[pair] = l;
}
template <int D, int NT>
__device__ Softmax merge_warps(const Shared<D, NT>& shared, int pair, int channel) {
  float o = shared.warps.o[0][pair][channel];
#pragma unroll
  for (int w = 1; w < kWarps; w++) {
    const float2 f = shared.factors[w][pair];
    o = __fmaf_rn(f.y, shared.warps.o[w][pair][channel], __fmul_rn(f.x, o));
  }
  return {shared.m[pair], shared.l[pair], o};
}

/// Partials of a tile's runs in global memory, [runs][m, l, o].
template <int D, int NT>
struct Partials {
  static constexpr int kPairs = 4 * NT, kFloats = kPairs * (D + 2);
  float* base;
  __device__ void write(int run, int pair, int channel, const Softmax& s) const {
    float* to = base + static_cast<size_t>(run) * kFloats;
    to[pair * D + channel] = s.o;
    if (channel == 0) {
      to[kPairs * D + pair] = s.m;
      to[kPairs * (D + 1) + pair] = s.l;
    }
  }
};

/// True in all threads of the last block of a tile to arrive with its runs; what the others wrote can be read
/// then.
__device__ bool arrive_last(uint32_t* counter, int own, int all, uint32_t& shared_flag) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // of what the whole block has written: fences are cumulative across the barrier
    const bool last = atomicAdd(counter, static_cast<uint32_t>(own)) == static_cast<uint32_t>(all - own);
    if (last) *counter = 0;
    __threadfence();
    shared_flag = last;
  }
  __syncthreads();
  return shared_flag;
}

/// All runs of a tile in order, by a whole block. Maxima and sums come through shared memory, 64 runs at a
/// time, so that the loads of outputs do not wait for each other.
template <int D, int NT, class Write>
__device__ void merge_runs(const Partials<D, NT>& partials, int n_runs, int n_values, float* shared,
                           const Write& write) {
  constexpr int kRuns = 64, kPairs = 4 * NT, kAhead = NT == 1 ? 20 : 8;
  constexpr int kEach = (kPairs * D + kThreads - 1) / kThreads;
  float* maxima = shared;  // [runs][pairs]
  float* sums = shared + kRuns * kPairs;
  Softmax total[kEach];
#pragma unroll
  for (int v = 0; v < kEach; v++) total[v] = {kLowest, 0, 0};
  for (int first = 0; first < n_runs; first += kRuns) {
    const int n = min(kRuns, n_runs - first);
    __syncthreads();
    for (int i = threadIdx.x; i < n * kPairs; i += kThreads) {
      const float* from = partials.base + static_cast<size_t>(first + i / kPairs) * Partials<D, NT>::kFloats;
      const int pair = min(i % kPairs, n_values / D - 1);  // absent ones were not written
      maxima[i] = __ldcg(from + kPairs * D + pair);
      sums[i] = __ldcg(from + kPairs * (D + 1) + pair);
    }
    __syncthreads();
    for (int run = 0; run < n; run += kAhead) {
      float o[kAhead][kEach];
#pragma unroll
      for (int x = 0; x < kAhead; x++)
#pragma unroll
        for (int v = 0; v < kEach; v++) {
          const float* from =
              partials.base + static_cast<size_t>(first + min(run + x, n - 1)) * Partials<D, NT>::kFloats;
          o[x][v] = __ldcg(from + min(static_cast<int>(threadIdx.x) + v * kThreads, n_values - 1));
        }
#pragma unroll
      for (int x = 0; x < kAhead; x++) {
        if (run + x >= n) break;
#pragma unroll
        for (int v = 0; v < kEach; v++) {
          const int at =
              (run + x) * kPairs + min((static_cast<int>(threadIdx.x) + v * kThreads) / D, kPairs - 1);
          const Softmax part{maxima[at], sums[at], o[x][v]};
          if (first + run + x == 0)
            total[v] = part;
          else
            total[v].add(part);
        }
      }
    }
  }
#pragma unroll
  for (int v = 0; v < kEach; v++) {
    const int i = threadIdx.x + v * kThreads;
    if (i < n_values) write(i / D, i % D, total[v].result());
  }
}

static_assert(kBlocks<128> == 2 && kBlocks<192> == 1, "attend_plan.h counts on it");

template <int D, int NT, bool kCapped>
__global__ void __launch_bounds__(kThreads, kBlocks<D>) attend_kernel(const AttendArgs args) {
  extern __shared__ __align__(128) unsigned char raw[];
  auto& shared = *reinterpret_cast<Shared<D, NT>*>(raw);
  auto* totals = reinterpret_cast<Softmax*>(raw + sizeof(Shared<D, NT>));  // [pairs · D], where it is needed
  const AttendTile tile = args.tiles[blockIdx.x];
  const int kv_head = blockIdx.y, w = threadIdx.x / 32;
  const int n_runs = run_of(tile.query_page) + 1;
  const PartOfRuns own(args, tile, blockIdx.z);
  if (own.at < 0) return;
  const int first_run = own.first_run(), end_run = own.end_run();
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  if (threadIdx.x % 32 < Shared<D, NT>::kStages) barrier_init(&shared.full[w][threadIdx.x % 32], 1);
  barrier_fence();
  __syncwarp();
#endif
  const Pairs<D> pairs{args, tile, kv_head};
  Warp<D, NT, kCapped> warp(args, tile);
  Ring<D, NT> ring{shared, w, static_cast<int>(threadIdx.x) % 32};
  Part<D, NT, kCapped> part(ring, args, tile, kv_head, first_run, end_run);
  warp.packed.prepare(pairs);
  prepare_full<D, NT>(pairs, shared.q_bf16);
  __syncthreads();
  const bool whole = own.n_parts == 1;  // else others have runs of this tile, too
  const size_t owner = static_cast<size_t>(blockIdx.x) * args.n_kv_heads + kv_head;
  const Partials<D, NT> partials{args.partials + owner * args.max_runs * Partials<D, NT>::kFloats};
  const int n_values = pairs.n() * D;

#pragma unroll 1
  for (int run = first_run; run < end_run; run++) {
    warp.sums.start();
    part.go_through(run, warp, shared.q_bf16);
    __syncthreads();  // the results of the run before have been read
    warp.finish(shared.warps.o[w], shared.warps.m[w], shared.warps.l[w]);
    __syncthreads();
    if (threadIdx.x < 4 * NT) prepare_merge(shared, threadIdx.x);
    __syncthreads();
    for (int i = threadIdx.x; i < n_values; i += kThreads) {
      const int pair = i / D, channel = i % D;
      Softmax s = merge_warps(shared, pair, channel);
      if (!whole) {
        partials.write(run, pair, channel, s);
        continue;
      }
      if (run > 0) {  // a thread meets the same values in every run
        Softmax before = totals[i];
        before.add(s);
        s = before;
      }
      if (run + 1 < n_runs)
        totals[i] = s;
      else
        args.out[pairs.row_of(pair) * D + channel] = s.result();
    }
  }
  if (whole) return;
  if (!arrive_last(args.arrivals + owner, end_run - first_run, n_runs, shared.is_last)) return;
  merge_runs<D, NT>(partials, n_runs, n_values, reinterpret_cast<float*>(raw),
                    [&](int pair, int channel, float x) { args.out[pairs.row_of(pair) * D + channel] = x; });
}

template <int D, int NT, bool kCapped>
void launch(const AttendArgs& args, cudaStream_t stream) {
  constexpr size_t kShared = sizeof(Shared<D, NT>), kTotals = sizeof(Softmax) * 4 * NT * D;
  cudaFuncSetAttribute(attend_kernel<D, NT, kCapped>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(kShared + kTotals));
  const int n_parts = (args.max_pages + args.pages_each - 1) / args.pages_each;
  attend_kernel<D, NT, kCapped>
      <<<dim3(args.n_tiles, args.n_kv_heads, n_parts), kThreads, kShared + kTotals, stream>>>(args);
}

}  // namespace

template <int D>
void launch_attend_for(const AttendArgs& args, int pairs, cudaStream_t stream) {
  if (args.soft_cap > 0) return launch<D, 1, true>(args, stream);
  if constexpr (D <= 192)  // shared memory
    if (pairs > 4) return launch<D, 2, false>(args, stream);
  launch<D, 1, false>(args, stream);
}

}  // namespace kv2::cuda
