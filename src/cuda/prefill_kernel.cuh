// SPDX-License-Identifier: Apache-2.0
// Attention for many queries of one page (docs/kernels/attend.md). A block has one KV head and eight tiles of
// queries of the same page; each of its warps goes through all pages for one tile. Pages come through a ring
// of stages that all warps read, and the warps take turns in filling it.
//
// The bits are those of attend_kernel.cuh: a warp does one after the other what eight warps do there, with
// the same instructions. It sums up the share that warp 0 of a run would have, then that of warp 1, and so
// on, and merges shares from the left, then runs from the left. What waits for its merge stands in shared
// memory, where its lane left it.
#pragma once

#include "cuda/attend_full.cuh"
#include "cuda/attend_launch.h"
#include "cuda/attend_packed.cuh"
#include "cuda/prefill_pieces.cuh"

namespace kv2::cuda {
namespace {

using namespace attention;

// No warp of its own for copies: with nine a multiprocessor has 168 registers for each, and pages spill.
constexpr int kPrefillThreads = 32 * kPrefillTiles;

/// Sums of a tile that wait for others, in the order of registers.
template <int D, int NT>
struct Part {
  float2 o[NT][D / 16][32], ml[NT][4];

  /// Lanes of a pair write the same m and l.
  __device__ void set(const Sums<D, NT>& x, int lane) {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      ml[nt][lane & 3] = {x.m[nt], x.l[nt]};
#pragma unroll
      for (int i = 0; i < D / 16; i++) o[nt][i][lane] = {x.o[nt][i][0], x.o[nt][i][1]};
    }
  }
  __device__ void add(const Sums<D, NT>& x, int lane) {
    add(
        lane,
        [&](int nt) {
          return float2{x.m[nt], x.l[nt]};
        },
        [&](int nt, int i) {
          return float2{x.o[nt][i][0], x.o[nt][i][1]};
        });
  }
  __device__ void add(const Part& x, int lane) {
    add(
        lane, [&](int nt) { return x.ml[nt][lane & 3]; }, [&](int nt, int i) { return x.o[nt][i][lane]; });
  }

 private:
  template <class Ml, class O>
  __device__ void add(int lane, const Ml& added_ml, const O& added_o) {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      const float2 before = ml[nt][lane & 3], added = added_ml(nt);
      const Worth worth(before.x, added.x);
      __syncwarp();  // all lanes of the pair have read it
      ml[nt][lane & 3] = {worth.m, worth.sum(before.y, added.y)};
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
        const float2 o_before = o[nt][i][lane], o_added = added_o(nt, i);
        o[nt][i][lane] = {worth.sum(o_before.x, o_added.x), worth.sum(o_before.y, o_added.y)};
      }
    }
    __syncwarp();
  }
};

template <int D>
struct PrefillShared {
  static constexpr int kNT = prefill_pairs(D) / 4;
  static constexpr int kStages = 4;  // more do not fit an A100
  unsigned char ring[kStages][Shape<D>::kStageBytes];
  Part<D, kNT> run[kPrefillTiles], total[kPrefillTiles];
  Piece pieces[2][kMaxPieces];  // of a run and of the next one
  int n_pieces[2];
  AttendTile tiles[kPrefillTiles];
  int n_tiles;  // that have queries
  uint64_t full[kStages], empty[kStages];

  __device__ void list(int index) {
    list_pieces(tiles[0], index, pieces[index & 1], n_pieces[index & 1], threadIdx.x, kPrefillThreads);
  }
  /// Before a run is gone through, by all warps: lists the next one. Nobody reads the list before any more:
  /// copies of this run have begun.
  __device__ void open_run(int index, int n_runs) {
    __syncthreads();
    if (index + 1 < n_runs) list(index + 1);
    __syncthreads();
  }
};

/// A warp's view of the ring. Every warp counts all pieces, and fills the stage of each n-th.
template <int D>
struct SharedRing {
  using S = Shape<D>;
  static constexpr int kStages = PrefillShared<D>::kStages, kAhead = kStages / 2;
  const AttendArgs& args;
  PrefillShared<D>& shared;
  const int kv_head, lane, n_runs;
  int run = 0, at = 0;  // the piece to copy next
  int until_turn;       // pieces that others fill before this warp's next
  uint32_t filled = 0, read = 0;

  __device__ SharedRing(const AttendArgs& a, PrefillShared<D>& s, int kv_head_, int w, int n_runs_)
      : args(a), shared(s), kv_head(kv_head_), lane(threadIdx.x % 32), n_runs(n_runs_), until_turn(w) {
#pragma unroll 1
    for (int i = 0; i < kAhead; i++) fill();
  }
  static __device__ void init(PrefillShared<D>& shared) {
    for (int i = 0; i < kStages; i++) {
      barrier_init(&shared.full[i], kBulkCopies ? 1 : 32);
      barrier_init(&shared.empty[i], shared.n_tiles);
    }
    barrier_fence();
  }

  __device__ __forceinline__ void fill() {
    if (at == shared.n_pieces[run & 1]) {
      if (run + 1 == n_runs) return;
      run++, at = 0;
    }
    if (until_turn-- == 0) {
      until_turn = shared.n_tiles - 1;
      copy(shared.pieces[run & 1][at]);
    }
    at++, filled++;
  }
  __device__ __forceinline__ void copy(Piece piece) const {
    const uint32_t stage = filled % kStages, what = piece.word & 15;
    const auto slot = static_cast<int32_t>(piece.word >> 4);
    const bool packed = what == 8;
    const std::byte* from =
        packed ? args.packed.head(slot, kv_head)
               : args.full.head(slot, kv_head) + (what & 3) * S::kFullTile + (what >> 2) * (kPage * D * 2);
    const int bytes = packed ? S::kBytes : S::kFullTile;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (lane == 0) {
      if (filled >= kStages) wait_barrier(&shared.empty[stage], (filled / kStages - 1) & 1);
      copy_page(shared.ring[stage], from, bytes, &shared.full[stage]);
    }
#else
    if (filled >= kStages) wait_barrier(&shared.empty[stage], (filled / kStages - 1) & 1);
    for (int i = lane * 16; i < bytes; i += 512) copy16(&shared.ring[stage][i], from + i);
    arrive_after_copies(&shared.full[stage]);
#endif
    __syncwarp();
  }

  /// The next piece, once it is there; the one kAhead behind it is sent for.
  __device__ __forceinline__ const unsigned char* wait() {
    fill();
    const uint32_t stage = read % kStages;
    wait_barrier(&shared.full[stage], read / kStages & 1);
    return shared.ring[stage];
  }
  __device__ __forceinline__ void done() {
    __syncwarp();  // all lanes have read it
    if (lane == 0) arrive_barrier(&shared.empty[read % kStages]);
    read++;
  }
};

/// A warp's queries for full pages, from memory: packed pages need the registers.
template <int D, int NT>
struct QueriesInMemory {
  const float* rows[NT];
  int n_here;  // n-tiles whose pair of this lane is there

  __device__ explicit QueriesInMemory(const Pairs<D>& pairs) : n_here(0) {
    const int first = threadIdx.x % 32 >> 3;
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      rows[nt] = pairs.q_row(4 * nt + first);
      n_here += 4 * nt + first < pairs.n();
    }
  }
  __device__ uint2 operator()(int nt, int i) const {
    return q_fragment(rows[nt], i, nt < n_here);
  }
};
template <int D, int NT>
struct QueriesInRegisters {
  uint2 fragments[NT][D / 16];

  __device__ explicit QueriesInRegisters(const QueriesInMemory<D, NT>& q) {
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
      for (int i = 0; i < D / 16; i++) fragments[nt][i] = q(nt, i);
  }
  __device__ uint2 operator()(int nt, int i) const {
    return fragments[nt][i];
  }
};

template <int D, bool kReadsPacked>
__device__ void attend_tile(const AttendArgs& args, PrefillShared<D>& shared, int kv_head, int w, int lane) {
  constexpr int NT = PrefillShared<D>::kNT;
  const AttendTile& tile = shared.tiles[w];
  const Pairs<D> pairs{args, tile, kv_head};
  PackedPages<D, NT, false> packed(args);
  const FullPages<D, NT, false> full(args, tile);
  if constexpr (kReadsPacked) packed.prepare(pairs);
  using Queries = std::conditional_t<kReadsPacked, QueriesInMemory<D, 1>, QueriesInRegisters<D, NT>>;
  const Queries q = [&] {
    if constexpr (kReadsPacked)
      return Queries{pairs};  // unused
    else
      return Queries{QueriesInMemory<D, NT>{pairs}};
  }();
  const int n_runs = Runs{tile.query_page}.count();
  SharedRing<D> ring(args, shared, kv_head, w, n_runs);
  Part<D, NT>&run_part = shared.run[w], &total = shared.total[w];
  Sums<D, NT> sums;
#pragma unroll 1
  for (int index = 0; index < n_runs; index++) {
    shared.open_run(index, n_runs);
    Part<D, NT>& part = index == 0 ? total : run_part;
#pragma unroll 1
    for (int share = 0; share < kWarps; share++) {
      sums.start();
      const Run run(tile, index);
      if constexpr (kReadsPacked) {
#pragma unroll 1
        for (int left = run.n_packed(share); left > 0; left--) {
          packed.take(ring.wait(), sums);
          ring.done();
        }
      }
      const int n_full = run.n_full(share, run.end), n_full_to_own = run.n_full(share, tile.query_page);
#pragma unroll 1
      for (int i = 0; i < n_full; i++) {
        const bool own = i == n_full_to_own;  // counted up to it, and it comes last
        uint32_t p[NT][2];
        float worth[NT];
        const auto multiply = [&](const auto& queries) {
          full.keys(ring.wait(), share % 4, own, queries, sums, p, worth);
        };
        if constexpr (kReadsPacked)
          multiply(QueriesInMemory<D, NT>{pairs});
        else
          multiply(q);
        ring.done();
        full.values(ring.wait(), share % 4, own, p, worth, sums);
        ring.done();
      }
      sums.close();
      if (share == 0)
        part.set(sums, lane);
      else
        part.add(sums, lane);
    }
    if (index > 0) total.add(run_part, lane);
  }
#pragma unroll
  for (int nt = 0; nt < NT; nt++) {
    const int pair = 4 * nt + (lane & 3);
    if (pair >= pairs.n()) continue;
    float* to = args.out + pairs.row_of(pair) * D + (lane >> 2);
    const float l = total.ml[nt][lane & 3].y;
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
      to[16 * i] = __fdiv_rn(total.o[nt][i][lane].x, l);
      to[16 * i + 8] = __fdiv_rn(total.o[nt][i][lane].y, l);
    }
  }
}

template <int D, bool kReadsPacked>
__global__ void __launch_bounds__(kPrefillThreads, 1) prefill_kernel(const AttendArgs args) {
  extern __shared__ __align__(128) unsigned char raw[];
  auto& shared = *reinterpret_cast<PrefillShared<D>*>(raw);
  const int block = static_cast<int>(blockIdx.x) / args.n_kv_heads,
            kv_head = static_cast<int>(blockIdx.x) % args.n_kv_heads;
  const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
  const AttendTile* tiles = args.prefill_tiles + block * kPrefillTiles;
  if (threadIdx.x < kPrefillTiles) {
    shared.tiles[threadIdx.x] = tiles[threadIdx.x];
    const uint32_t here = __ballot_sync((1u << kPrefillTiles) - 1, tiles[threadIdx.x].n_queries > 0);
    if (threadIdx.x == 0) {
      shared.n_tiles = __popc(here);
      SharedRing<D>::init(shared);
    }
  }
  __syncthreads();
  shared.list(0);
  __syncthreads();
  if (w < shared.n_tiles) {
    attend_tile<D, kReadsPacked>(args, shared, kv_head, w, lane);
  } else {
    const int n_runs = Runs{shared.tiles[0].query_page}.count();
    for (int run = 0; run < n_runs; run++) shared.open_run(run, n_runs);
  }
}

template <int D, bool kReadsPacked>
void launch_prefill(const AttendArgs& args, cudaStream_t stream) {
  constexpr size_t kShared = sizeof(PrefillShared<D>);
  cudaFuncSetAttribute(prefill_kernel<D, kReadsPacked>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(kShared));
  prefill_kernel<D, kReadsPacked>
      <<<args.n_prefill_blocks * args.n_kv_heads, kPrefillThreads, kShared, stream>>>(args);
}

}  // namespace

template <int D>
size_t prefill_shared_bytes() {
  return sizeof(PrefillShared<D>);
}

template <int D>
void launch_prefill_for(const AttendArgs& args, cudaStream_t stream) {
  if (args.prefill_kernel == PrefillKernel::Packed)
    launch_prefill<D, true>(args, stream);
  else
    launch_prefill<D, false>(args, stream);
}

}  // namespace kv2::cuda
