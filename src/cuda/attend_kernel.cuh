// SPDX-License-Identifier: Apache-2.0
// Attention over full and packed pages for few queries at a time (docs/kernels/attend.md); prefill_kernel.cuh
// has the same bits for many. A block of eight warps takes one run of pages of one tile after the other; warp
// w takes every eighth packed page from w on, and of the full pages tokens 16(w % 4) to 16(w % 4) + 15 of
// every second one. What a warp sees, in which order, and how results are merged depends on page numbers
// alone, and a column of an mma on nothing but itself: a query's bits depend neither on its batch nor on its
// chunk. Pages come through a ring of stages in shared memory, copied ahead; a full page's 16 tokens are a
// stage of keys and a stage of values.
#pragma once

#include "cuda/attend_channels.cuh"
#include "cuda/attend_full.cuh"
#include "cuda/attend_launch.h"
#include "cuda/attend_merge.cuh"
#include "cuda/attend_packed.cuh"
#include "cuda/linear_inputs.cuh"
#include "cuda/overlap.cuh"

namespace kv2::cuda {
namespace {

using namespace attention;

static_assert(kMaxRunPages == 64 && kWarps == 8, "a lane for each full page of a run that a warp may meet");
constexpr int kThreads = kWarps * 32;

/// How one warp merges the warps' results of a run, and the run with those before it. Every warp finds this
/// for itself, so that none waits for another.
template <int kPairs>
struct MergeFactors {
  // of the results of warps before one and of its own; [0]: of the runs before and of this one
  float2 of[kWarps][kPairs];
  float m[kPairs], l[kPairs];          // of the run
  float all_m[kPairs], all_l[kPairs];  // of all runs so far, where a block has all
};

/// Shared memory: a ring of stages for each warp, and the warps' results of a run.
template <class Pages>
struct Shared {
  static constexpr int D = Pages::kHeadDim, NT = Pages::kNT;
  using S = Shape<D>;
  static constexpr int kPairs = 4 * NT;
  static constexpr int kStages = Pages::kStages;  // in flight in each warp
  struct Results {
    float o[kWarps][kPairs][D + 8];  // 8: lanes of all pairs store to different banks
    float m[kWarps][kPairs], l[kWarps][kPairs];
  };
  unsigned char ring[kWarps][kStages][Pages::kStageBytes];
  Results warps;
  static constexpr size_t kReusable = sizeof(ring) + sizeof(warps);  // once a block has no pages left
  MergeFactors<kPairs> factors[kWarps];
  uint32_t n_merged[kWarps];  // runs of this block, by each warp
  float q[kPairs][D + 16];
  uint2 q_bf16[NT][S::kTiles][32];  // B fragments for full pages
  typename Pages::Queries queries;  // what packed pages need besides
  uint64_t full[kWarps][kStages], runs_fetched, merged;
  uint32_t is_last;
};

/// What a warp keeps: its queries in both forms of the pages, and its sums.
template <class Pages>
struct Warp {
  static constexpr int D = Pages::kHeadDim, NT = Pages::kNT;
  using S = Shape<D>;
  Pages packed;
  FullPages<D, NT, Pages::kIsCapped, typename Pages::WarpSums> full;
  typename Pages::WarpSums sums;

  __device__ Warp(const AttendArgs& args, const AttendTile& tile) : packed(args), full(args, tile) {}

  /// Writes the sums of a run.
  __device__ void finish(float (*out)[D + 8], float* out_m, float* out_l) {
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
template <class Pages>
struct Ring {
  static constexpr int kStages = Pages::kStages;
  Shared<Pages>& shared;
  const int w, lane;
  uint32_t filled = 0, read = 0;

  /// `more` goes behind it.
  __device__ __forceinline__ void fill(const std::byte* from, int bytes, const std::byte* more = nullptr,
                                       int more_bytes = 0) {
    const int stage = filled++ % kStages;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (lane == 0) {
      expect_bytes(&shared.full[w][stage], bytes + more_bytes);
      copy_bytes(shared.ring[w][stage], from, bytes, &shared.full[w][stage]);
      if (more_bytes > 0) copy_bytes(shared.ring[w][stage] + bytes, more, more_bytes, &shared.full[w][stage]);
    }
#else
    for (int at = lane * 16; at < bytes; at += 512) copy16(&shared.ring[w][stage][at], from + at);
    for (int at = lane * 16; at < more_bytes; at += 512)
      copy16(&shared.ring[w][stage][bytes + at], more + at);
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
template <class Pages>
struct Part {
  static constexpr int D = Pages::kHeadDim, NT = Pages::kNT;
  using S = Shape<D>;
  Ring<Pages>& ring;
  const AttendArgs& args;
  const AttendTile& tile;
  const Runs runs;
  const int kv_head, w, end_run;
  // of the run that is being copied and of the one after it: slots of the lane-th packed and full page
  int fill_run;
  int32_t packed_slot = 0, full_slot = 0, next_packed_slot = 0, next_full_slot = 0;
  uint32_t packed_left = 0, full_left = 0;  // a bit for each page still to copy
  int piece = 0;                            // of the page that is being copied

  __device__ Part(Ring<Pages>& r, const AttendArgs& a, const AttendSegment& segment)
      : ring(r),
        args(a),
        tile(segment.tile),
        runs{segment.tile.query_page},
        kv_head(segment.kv_head),
        w(r.w),
        end_run(segment.end_run),
        fill_run(segment.first_run - 1) {
    find_next();
    open_next();
#pragma unroll 1
    for (int i = 0; i < Pages::kStages; i++) fill();
  }

  __device__ bool is_packed(int page) const {
    return page >= tile.packed_begin && page < tile.packed_end;
  }
  __device__ int full_page(int run, int i) const {
    return runs.begin(run) + 2 * i + w / 4;
  }
  __device__ bool has_packed(int run) const {  // the lane-th packed page
    const int page = runs.begin(run) + kWarps * ring.lane + w;
    return page < runs.end(run) && is_packed(page);
  }
  __device__ bool has_full(int run) const {
    const int page = full_page(run, ring.lane);
    return page < runs.end(run) && !is_packed(page);
  }

  __device__ void find_next() {
    const int run = fill_run + 1;
    if (run >= end_run) return;
    if (has_packed(run))
      next_packed_slot = __ldg(tile.packed_pages + runs.begin(run) + kWarps * ring.lane + w);
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
      Pages::fetch(ring, args, slot, kv_head, piece);
      if (++piece == Pages::kPieces) piece = 0, packed_left &= packed_left - 1;
    } else {
      if (args.overlaps) wait_for_inputs();  // the queries' own rows are among what it waits for
      const int32_t slot = __shfl_sync(~0u, full_slot, __ffs(full_left) - 1);
      constexpr int kHalves = Pages::kHalves, kBytes = S::kFullTile / kHalves;  // keys, then values
      ring.fill(args.full.head(slot, kv_head) + piece / kHalves * (kPage * D * 2) + w % 4 * S::kFullTile +
                    piece % kHalves * kBytes,
                kBytes);
      if (++piece == 2 * kHalves) piece = 0, full_left &= full_left - 1;
    }
  }
  __device__ void release() {
    __syncwarp();  // all lanes have read the stage
    fill();
  }
  /// 16 tokens' rows of a full page; their second half is `gap` bytes further than behind the first.
  __device__ const unsigned char* wait_full(int& gap) {
    const unsigned char* rows = ring.wait();
    if constexpr (Pages::kHalves == 2) gap = static_cast<int>(ring.wait() - rows) - S::kFullTile / 2;
    return rows;
  }
  __device__ void release_full() {
    release();
    if constexpr (Pages::kHalves == 2) fill();
  }
  __device__ void go_through(int run, Warp<Pages>& warp, const uint2 (*q)[S::kTiles][32]) {
#pragma unroll 1
    for (int left = __popc(__ballot_sync(~0u, has_packed(run))); left > 0; left--)
      warp.packed.take([&] { return ring.wait(); }, [&] { release(); }, warp.sums);
#pragma unroll 1
    for (uint32_t left = __ballot_sync(~0u, has_full(run)); left; left &= left - 1) {
      const bool own = full_page(run, __ffs(left) - 1) == tile.query_page;
      uint32_t p[NT][2];
      float worth[NT];
      int gap = 0;
      const unsigned char* keys = wait_full(gap);
      warp.full.keys(
          keys, w % 4, own, [&](int nt, int i) { return q[nt][i][ring.lane]; }, warp.sums, p, worth, gap);
      release_full();
      const unsigned char* values = wait_full(gap);
      warp.full.values(values, w % 4, own, p, worth, warp.sums, gap);
      release_full();
    }
  }
};

/// A block's queries on their way to shared memory, once for all warps: blocks of a tile ask for the same few
/// rows at the same moment. Read past the first cache, since the kernel before may just have written them.
template <int D, int NT>
struct QueriesAhead {
  static constexpr int kEach = (4 * NT * D / 4 + kThreads - 1) / kThreads;
  float4 values[kEach];

  __device__ __forceinline__ void load(const Pairs<D>& pairs) {
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      const int at = min(threadIdx.x + i * kThreads, NT * D - 1);
      values[i] = load_now(pairs.q_row(at / (D / 4)) + at % (D / 4) * 4);
    }
  }
  __device__ __forceinline__ void store(float (*rows)[D + 16]) const {
#pragma unroll
    for (int i = 0; i < kEach; i++)
      if (const int at = threadIdx.x + i * kThreads; at < NT * D)
        *reinterpret_cast<float4*>(&rows[at / (D / 4)][at % (D / 4) * 4]) = values[i];
  }
  /// Issued here and not where the values are used.
  static __device__ __forceinline__ float4 load_now(const float* from) {
    float4 x;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3},[%4];\n"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
  }
};

/// B fragments for full pages, by all warps of a block.
template <int D, int NT>
__device__ void prepare_full(const float (*rows)[D + 16], int n_pairs, uint2 (*out)[Shape<D>::kTiles][32]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int nt = 0; nt < NT; nt++)
    for (int i = threadIdx.x / 32; i < Shape<D>::kTiles; i += kWarps) {
      const int pair = 4 * nt + (lane >> 3);
      out[nt][i][lane] = q_fragment(rows[pair], i, pair < n_pairs);
    }
}

/// How a run's results are merged, from warp 0 on, and with the runs before where `whole`.
template <class Pages>
__device__ __forceinline__ void find_factors(Shared<Pages>& shared, int w, int lane, bool whole,
                                             bool is_first) {
  constexpr int kPairs = Shared<Pages>::kPairs;
  MergeFactors<kPairs>& to = shared.factors[w];
#pragma unroll
  for (int first = 0; first < kPairs; first += 4) {  // lanes have the warps of four pairs
    const int pair = first + lane % 4, of = lane / 4;
    const float own = shared.warps.m[of][pair];
    float upto = own;
#pragma unroll
    for (int step = 4; step < 32; step <<= 1) {
      const float left = __shfl_up_sync(~0u, upto, step);
      if (lane >= step) upto = fmaxf(left, upto);
    }
    const Worth worth(__shfl_up_sync(~0u, upto, 4), own);
    const float m = __shfl_sync(~0u, upto, 28 + lane % 4);
    if (of > 0) to.of[of][pair] = {worth.before, worth.added};
    __syncwarp();
    float l = shared.warps.l[0][pair];
#pragma unroll
    for (int i = 1; i < kWarps; i++) {
      const float2 f = to.of[i][pair];
      l = merged(f.x, l, f.y, shared.warps.l[i][pair]);
    }
    if (of > 0) continue;
    to.m[pair] = m;
    to.l[pair] = l;
    if (!whole) continue;
    const Worth run(is_first ? m : to.all_m[pair], m);
    to.of[0][pair] = {run.before, run.added};
    to.all_l[pair] = is_first ? l : run.sum(to.all_l[pair], l);
    to.all_m[pair] = run.m;
  }
  __syncwarp();
}
template <class Pages>
__device__ __forceinline__ float merge_warps(const Shared<Pages>& shared, int w, int pair, int channel) {
  float o = shared.warps.o[0][pair][channel];
#pragma unroll
  for (int i = 1; i < kWarps; i++) {
    const float2 f = shared.factors[w].of[i][pair];
    o = merged(f.x, o, f.y, shared.warps.o[i][pair][channel]);
  }
  return o;
}

template <class Pages>
using Merger = RunMerger<Pages::kHeadDim, Pages::kNT, kThreads, Shared<Pages>::kReusable>;

template <class Pages>
__device__ __forceinline__ void attend_segment(const AttendArgs& args, const AttendSegment& segment,
                                               Shared<Pages>& shared, float* totals, Ring<Pages>& ring,
                                               uint32_t& n_fetched) {
  constexpr int D = Pages::kHeadDim, NT = Pages::kNT;
  const AttendTile& tile = segment.tile;
  const int n_runs = Runs{tile.query_page}.count(), n_own = segment.end_run - segment.first_run;
  const Pairs<D> pairs{args, tile, segment.kv_head};
  QueriesAhead<D, NT> ahead;
  if (!args.overlaps) ahead.load(pairs);  // before the pages, or they would wait behind these
  Part<Pages> part(ring, args, segment);
  if (args.overlaps) {
    wait_for_inputs();
    ahead.load(pairs);
  }
  ahead.store(shared.q);
  __syncthreads();
  Warp<Pages> warp(args, tile);
  warp.packed.prepare(shared.q, pairs.n(), shared.queries);
  prepare_full<D, NT>(shared.q, pairs.n(), shared.q_bf16);
  __syncthreads();
  const bool whole = n_own == n_runs;  // else others have runs of this tile, too
  const auto partials = [&] {
    return Partials<D, NT>{args.partials +
                           static_cast<size_t>(segment.owner) * args.max_runs * Partials<D, NT>::kFloats};
  };
  const int n_values = pairs.n() * D;
  const auto write = [&](int pair, int channel, float x) {
    const int head = static_cast<int>(pairs.row_of(pair)), n_heads = args.n_kv_heads * args.q_per_kv;
    args.out[static_cast<size_t>(head) * D + channel] = x;
    if (args.rounded.memory) store_input(args.rounded, head / n_heads, head % n_heads * D + channel, x);
  };

#pragma unroll 1
  for (int run = segment.first_run; run < segment.end_run; run++) {
    warp.sums.start();
    part.go_through(run, warp, shared.q_bf16);
    // what is left needs little of a multiprocessor
    if (segment.next < 0 && run + 1 == segment.end_run) let_next_begin();
    const uint32_t n_merged = shared.n_merged[ring.w];
    if (n_merged > 0) wait_barrier(&shared.merged, (n_merged - 1) & 1);  // the results before have been read
    warp.finish(shared.warps.o[ring.w], shared.warps.m[ring.w], shared.warps.l[ring.w]);
    __syncthreads();
    find_factors(shared, ring.w, ring.lane, whole, run == 0);
    const auto& factors = shared.factors[ring.w];
    for (int i = threadIdx.x; i < n_values; i += kThreads) {
      const int pair = i / D, channel = i % D;
      float o = merge_warps(shared, ring.w, pair, channel);
      if (!whole) {
        partials().write(run, pair, channel, factors.m[pair], factors.l[pair], o);
        continue;
      }
      if (run > 0) {  // a thread meets the same values in every run
        const float2 f = factors.of[0][pair];
        o = merged(f.x, totals[i], f.y, o);
      }
      if (run + 1 < n_runs)
        totals[i] = o;
      else
        write(pair, channel, __fdiv_rn(o, factors.all_l[pair]));
    }
    __syncwarp();
    if (ring.lane == 0) {
      arrive_barrier(&shared.merged);
      shared.n_merged[ring.w] = n_merged + 1;
    }
    __syncwarp();
  }
  if (!whole && arrive_last(args.arrivals + segment.owner, n_own, n_runs, shared.is_last))
    Merger<Pages>(&shared, &shared.runs_fetched, n_fetched).merge(partials(), n_runs, n_values, write);
  if (segment.next >= 0) __syncthreads();  // all of this has been read
}

template <class Pages>
inline constexpr int kSharedBytes = sizeof(Shared<Pages>) + sizeof(float) * 4 * Pages::kNT* Pages::kHeadDim;

template <class Pages>
__global__ void __launch_bounds__(kThreads, attend_blocks(Pages::kHeadDim, 4 * Pages::kNT))
    attend_kernel(const AttendArgs args) {
  extern __shared__ __align__(128) unsigned char raw[];
  auto& shared = *reinterpret_cast<Shared<Pages>*>(raw);
  auto* totals = reinterpret_cast<float*>(raw + sizeof(Shared<Pages>));  // [pairs · D], where it is needed
  const int w = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) shared.n_merged[w] = 0;
  if (threadIdx.x == 0) barrier_init(&shared.merged, kWarps);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  if (threadIdx.x % 32 < Shared<Pages>::kStages) barrier_init(&shared.full[w][threadIdx.x % 32], 1);
  if (threadIdx.x == 0) barrier_init(&shared.runs_fetched, 1);
  barrier_fence();
#endif
  __syncwarp();
  Ring<Pages> ring{shared, static_cast<int>(threadIdx.x) / 32, static_cast<int>(threadIdx.x) % 32};
  uint32_t n_fetched = 0;
  int at = blockIdx.x;
#pragma unroll 1
  do {
    const AttendSegment& segment = args.segments[at];  // read again where it is needed: registers are scarce
    if (segment.end_run == 0) return wait_for_inputs();
    at = segment.next;
    attend_segment<Pages>(args, segment, shared, totals, ring, n_fetched);
  } while (at >= 0);
}

template <class Pages>
void launch(const AttendArgs& args, cudaStream_t stream) {
  constexpr int kBytes = kSharedBytes<Pages>;
  static_assert(attend_blocks(Pages::kHeadDim, 4 * Pages::kNT) * (kBytes + 1024) <=
                228 * 1024);  // of Hopper; others hold fewer
  const auto kernel = attend_kernel<Pages>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (args.overlaps)
    launch_overlapped(kernel, args.n_blocks, kThreads, kBytes, stream, args);
  else
    kernel<<<args.n_blocks, kThreads, kBytes, stream>>>(args);
}

}  // namespace

template <int D>
void launch_attend_for(const AttendArgs& args, int pairs, cudaStream_t stream) {
  if (args.soft_cap > 0) return launch<PackedPages<D, 1, true>>(args, stream);
  if constexpr (D <= 192)  // shared memory
    if (pairs > 4) return launch<PackedPages<D, 2, false>>(args, stream);
  launch<PackedPages<D, 1, false>>(args, stream);
}

template <int D>
void launch_attend_channels_for(const AttendArgs& args, int pairs, cudaStream_t stream) {
  if (args.soft_cap > 0) return launch<ChannelPages<D, 1, true>>(args, stream);
  if (pairs > 4) return launch<ChannelPages<D, 2, false>>(args, stream);
  launch<ChannelPages<D, 1, false>>(args, stream);
}

}  // namespace kv2::cuda
