// SPDX-License-Identifier: Apache-2.0
// Where a tile's runs are several blocks': partial results in memory, and the last block to arrive merges
// them. One sequence waits for this at the end of every layer, so all of them are fetched at once, what each
// is worth is found for all runs side by side, and the only chain is one multiplication and addition a run.
#pragma once

#include "cuda/attend_shape.cuh"

namespace kv2::cuda::attention {

/// Partials of a tile's runs in global memory, [runs][o, m, l].
template <int D, int NT>
struct Partials {
  static constexpr int kPairs = 4 * NT, kFloats = kPairs * (D + 2);
  float* base;
  __device__ float* run(int i) const { return base + static_cast<size_t>(i) * kFloats; }
  __device__ void write(int i, int pair, int channel, float m, float l, float o) const {
    float* to = run(i);
    to[pair * D + channel] = o;
    if (channel == 0) {
      to[kPairs * D + pair] = m;
      to[kPairs * (D + 1) + pair] = l;
    }
  }
};

/// True in all threads of the last block of a tile to arrive with its runs; what the others wrote can be read
/// then, by copies as well.
__device__ inline bool arrive_last(uint32_t* counter, int own, int all, uint32_t& shared_flag) {
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

/// All runs of a tile in order, by a whole block, in `kBytes` of shared memory that nobody uses meanwhile.
template <int D, int NT, int kThreads, size_t kBytes>
struct RunMerger {
  static constexpr int kPairs = 4 * NT, kFloats = Partials<D, NT>::kFloats;
  static constexpr int kRuns = static_cast<int>(kBytes / (4 * kFloats + sizeof(float4) * kPairs));  // at once
  static_assert(kRuns > 0 && kFloats % 4 == 0 && kPairs <= kThreads / 32);
  float* runs;      // [kRuns][kFloats], as in memory
  float4* factors;  // [kRuns][kPairs]: of what is before a run, of the run; the run's sum
  uint64_t* barrier;
  uint32_t& n_fetched;  // uses of the barrier

  __device__ RunMerger(void* memory, uint64_t* arrival, uint32_t& uses)
      : runs(static_cast<float*>(memory)),
        factors(reinterpret_cast<float4*>(runs + kRuns * kFloats)),
        barrier(arrival),
        n_fetched(uses) {}

  __device__ void fetch(const float* from, int n) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      fence_for_copies();
      copy_page(runs, from, static_cast<uint32_t>(4 * n * kFloats), barrier);
    }
    wait_barrier(barrier, n_fetched++ & 1);
#else
    for (int i = 4 * threadIdx.x; i < n * kFloats; i += 4 * kThreads) copy16(runs + i, from + i);
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;\n" ::: "memory");
    __syncthreads();
#endif
  }
  /// Warp p has pair p and a lane for each run: maxima from the left, and with them all factors. `m` is the
  /// largest so far.
  __device__ void find_factors(int n, float& m) const {
    const int pair = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (pair >= kPairs) return;
    for (int at = 0; at < n; at += 32) {
      const float* ml = runs + min(at + lane, n - 1) * kFloats + kPairs * D + pair;
      const float own = at + lane < n ? ml[0] : kLowest;
      float upto = own;
#pragma unroll
      for (int step = 1; step < 32; step <<= 1) {
        const float left = __shfl_up_sync(~0u, upto, step);
        if (lane >= step) upto = fmaxf(left, upto);
      }
      float before = __shfl_up_sync(~0u, upto, 1);
      before = lane == 0 ? m : fmaxf(m, before);
      const Worth worth(before, own);
      if (at + lane < n) factors[(at + lane) * kPairs + pair] = {worth.before, worth.added, ml[kPairs], 0};
      m = fmaxf(m, __shfl_sync(~0u, upto, 31));
    }
  }

  /// write(pair, channel, result) for the first n_values of [pairs][channels].
  template <class Write>
  __device__ void merge(const Partials<D, NT>& partials, int n_runs, int n_values, const Write& write) {
    constexpr int kEach = (kPairs * D / 2 + kThreads - 1) / kThreads;  // two channels, of one pair
    float2 o[kEach];
    float l[kEach], m = kLowest;
    for (int first = 0; first < n_runs; first += kRuns) {
      const int n = min(kRuns, n_runs - first);
      if (first > 0) __syncthreads();  // the runs before have been read
      fetch(partials.run(first), n);
      find_factors(n, m);
      __syncthreads();
#pragma unroll
      for (int v = 0; v < kEach; v++) {
        const int i = 2 * min(static_cast<int>(threadIdx.x) + v * kThreads, kPairs * D / 2 - 1);
        const float* x = runs + i;
        const float4* of_pair = factors + i / D;
        int run = 0;
        if (first == 0) o[v] = *reinterpret_cast<const float2*>(x), l[v] = of_pair[0].z, run = 1;
#pragma unroll 8
        for (; run < n; run++) {
          const float4 f = of_pair[run * kPairs];
          const float2 added = *reinterpret_cast<const float2*>(x + run * kFloats);
          o[v].x = merged(f.x, o[v].x, f.y, added.x);
          o[v].y = merged(f.x, o[v].y, f.y, added.y);
          l[v] = merged(f.x, l[v], f.y, f.z);
        }
      }
    }
#pragma unroll
    for (int v = 0; v < kEach; v++) {
      const int i = 2 * (threadIdx.x + v * kThreads);
      if (i >= n_values) continue;
      write(i / D, i % D, __fdiv_rn(o[v].x, l[v]));
      write(i / D, i % D + 1, __fdiv_rn(o[v].y, l[v]));
    }
  }
};

}  // namespace kv2::cuda::attention
