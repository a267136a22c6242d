// SPDX-License-Identifier: Apache-2.0
// Attention over full and packed pages for head_dim 64 and 128, decode and prefill alike
// (docs/kernels/attend.md). A block of four warps takes one run of pages of one tile; warp w takes every
// fourth packed page from w on, and tokens 16w to 16w + 15 of every full page. What a warp sees, in which
// order, and how results are merged depends on page numbers alone, and a column of an mma on nothing but
// itself: a query's bits depend neither on its batch nor on its chunk. Pages come through a ring of stages in
// shared memory, copied ahead; a full page's 16 tokens are a stage of keys and a stage of values.
#include "cuda/attend_warp.cuh"

namespace kv2::cuda {
namespace {

using namespace attention;

/// A warp's ring: stages are filled in the order in which they are asked for and read in that order.
template <int D, int NT>
struct Ring {
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
    wait_page(&shared.full[w][stage], (read / kStages) & 1);
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

/// One warp's part of a run.
template <int D, int NT>
__device__ void go_through(Warp<D, NT>& warp, Ring<D, NT>& ring, int run) {
  using P = PackedPage<D>;
  const AttendTile& tile = warp.tile;
  const AttendArgs& args = warp.args;
  const int w = ring.w, page = run * kRunPages + warp.lane;
  const bool here = page <= tile.query_page;
  const bool is_packed = here && page >= tile.packed_begin && page < tile.packed_end;
  int32_t slot = 0;
  if (here) slot = is_packed ? tile.packed_pages[page] : tile.full_pages[page];
  const uint32_t packed = __ballot_sync(~0u, is_packed);
  const uint32_t mine = __ballot_sync(~0u, here && (!is_packed || warp.lane % kWarps == w));
  uint32_t to_fill = mine;
  bool values_next = false;
  const auto fill = [&] {
    if (!to_fill) return;
    const int i = __ffs(to_fill) - 1;
    const int32_t s = __shfl_sync(~0u, slot, i);
    if (packed >> i & 1) {
      ring.fill(args.packed.head(s, warp.kv_head), P::kBytes);
      to_fill &= to_fill - 1;
      return;
    }
    ring.fill(args.full.head(s, warp.kv_head) + (values_next ? kPage * D * 2 : 0) + w * P::kFullTile,
              P::kFullTile);
    if (values_next) to_fill &= to_fill - 1;
    values_next = !values_next;
  };
#pragma unroll 1
  for (int i = 0; i < kStages; i++) fill();
#pragma unroll 1
  for (uint32_t left = mine; left; left &= left - 1) {
    const int i = __ffs(left) - 1;
    if (packed >> i & 1) {
      warp.packed_page(ring.wait());
    } else {
      const bool own = run * kRunPages + i == tile.query_page;
      uint32_t p[NT][2];
      warp.full_keys(ring.wait(), w, own, p);
      __syncwarp();
      fill();
      warp.full_values(ring.wait(), w, own, p);
    }
    __syncwarp();  // all lanes have read the stage
    fill();
  }
}

/// The four warps' results of a run, for one pair and channel.
template <int D, int NT>
__device__ Softmax merge_warps(const typename Shared<D, NT>::Partials& warps, int pair, int channel) {
  Softmax s{kLowest, 0, 0};
#pragma unroll
  for (int w = 0; w < kWarps; w++) s.m = fmaxf(s.m, warps.m[w][pair]);
#pragma unroll
  for (int w = 0; w < kWarps; w++) {
    const float e = exp2_fast(__fsub_rn(warps.m[w][pair], s.m));
    s.l = __fmaf_rn(e, warps.l[w][pair], s.l);
    s.o = __fmaf_rn(e, warps.o[w][pair][channel], s.o);
  }
  return s;
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

/// True in all threads of the last block of a tile to arrive; what the others wrote can be read then.
__device__ bool arrive_last(uint32_t* counter, int n, uint32_t& shared_flag) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // of what the whole block has written: fences are cumulative across the barrier
    const bool last = atomicAdd(counter, 1u) == static_cast<uint32_t>(n - 1);
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
  constexpr int kRuns = 64, kPairs = 4 * NT, kEach = kPairs * D / kThreads, kAhead = 8;
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
      maxima[i] = __ldcg(from + kPairs * D + i % kPairs);
      sums[i] = __ldcg(from + kPairs * (D + 1) + i % kPairs);
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
          o[x][v] = __ldcg(from + threadIdx.x + v * kThreads);
        }
#pragma unroll
      for (int x = 0; x < kAhead; x++) {
        if (run + x >= n) break;
#pragma unroll
        for (int v = 0; v < kEach; v++) {
          const int at = (run + x) * kPairs + (threadIdx.x + v * kThreads) / D;
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

template <int D, int NT>
__global__ void __launch_bounds__(kThreads, NT == 1 ? 4 : 2) attend_kernel(const AttendArgs args) {
  extern __shared__ __align__(128) unsigned char raw[];
  auto& shared = *reinterpret_cast<Shared<D, NT>*>(raw);
  auto* totals = reinterpret_cast<Softmax*>(raw + sizeof(Shared<D, NT>));  // [pairs · D], unless split
  const AttendTile tile = args.tiles[blockIdx.x];
  const int kv_head = blockIdx.y, w = threadIdx.x / 32;
  const int n_runs = tile.query_page / kRunPages + 1;
  const int first_run = args.split ? blockIdx.z : 0, end_run = args.split ? first_run + 1 : n_runs;
  if (first_run >= n_runs) return;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  if (threadIdx.x % 32 < kStages) barrier_init(&shared.full[w][threadIdx.x % 32]);
  barrier_fence();
  __syncwarp();
#endif
  Warp<D, NT> warp(args, tile, kv_head);
  warp.prepare_packed();
  const size_t owner = static_cast<size_t>(blockIdx.x) * args.n_kv_heads + kv_head;
  const Partials<D, NT> partials{args.partials + owner * args.max_runs * Partials<D, NT>::kFloats};
  const int n_values = warp.n_pairs() * D;
  Ring<D, NT> ring{shared, w, warp.lane};

#pragma unroll 1
  for (int run = first_run; run < end_run; run++) {
    warp.start();
    go_through(warp, ring, run);
    __syncthreads();  // rings are idle: the warps' results may lie over them
    warp.finish(shared.warps.o[w], shared.warps.m[w], shared.warps.l[w]);
    __syncthreads();
    for (int i = threadIdx.x; i < n_values; i += kThreads) {
      const int pair = i / D, channel = i % D;
      Softmax s = merge_warps<D, NT>(shared.warps, pair, channel);
      if (args.split && n_runs > 1) {
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
        args.out[warp.row_of(pair) * D + channel] = s.result();
    }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    fence_generic_before_async();  // the next run's copies come after these reads and writes
#endif
    __syncthreads();
  }
  if (!args.split || n_runs == 1) return;
  if (!arrive_last(args.arrivals + owner, n_runs, shared.is_last)) return;
  merge_runs<D, NT>(partials, n_runs, n_values, reinterpret_cast<float*>(raw),
                    [&](int pair, int channel, float x) { args.out[warp.row_of(pair) * D + channel] = x; });
}

template <int D, int NT>
void launch(const AttendArgs& args, cudaStream_t stream) {
  const size_t shared = sizeof(Shared<D, NT>) + (args.split ? 0 : sizeof(Softmax) * 4 * NT * D);
  cudaFuncSetAttribute(attend_kernel<D, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(sizeof(Shared<D, NT>) + sizeof(Softmax) * 4 * NT * D));
  const dim3 grid(args.n_tiles, args.n_kv_heads, args.split ? args.max_runs : 1);
  attend_kernel<D, NT><<<grid, kThreads, shared, stream>>>(args);
}

}  // namespace

bool attend_has(int head_dim) {
  return head_dim == 64 || head_dim == 128;
}

void launch_attend(const AttendArgs& args, int pairs, cudaStream_t stream) {
  if (args.head_dim == 64) return pairs <= 4 ? launch<64, 1>(args, stream) : launch<64, 2>(args, stream);
  pairs <= 4 ? launch<128, 1>(args, stream) : launch<128, 2>(args, stream);
}

}  // namespace kv2::cuda
