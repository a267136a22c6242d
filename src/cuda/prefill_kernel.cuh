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

namespace kv2::cuda {
namespace {

using namespace attention;

// No warp of its own for copies: with nine a multiprocessor has 168 registers for each, and pages spill.
constexpr int kPrefillThreads = kPrefillTiles * 32;

/// Sums of a tile that wait for others, in the order of registers.
template <int D, int NT>
struct Part {
  float2 o[NT][D / 16][32], ml[NT][32];

  __device__ void set(const Sums<D, NT>& x, int lane) {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      ml[nt][lane] = {x.m[nt], x.l[nt]};
#pragma unroll
      for (int i = 0; i < D / 16; i++) o[nt][i][lane] = {x.o[nt][i][0], x.o[nt][i][1]};
    }
  }
  __device__ void add(const Sums<D, NT>& x, int lane) {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      const Worth worth(ml[nt][lane].x, x.m[nt]);
      ml[nt][lane] = {worth.m, worth.sum(ml[nt][lane].y, x.l[nt])};
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
        const float2 before = o[nt][i][lane];
        o[nt][i][lane] = {worth.sum(before.x, x.o[nt][i][0]), worth.sum(before.y, x.o[nt][i][1])};
      }
    }
  }
  __device__ void add(const Part& x, int lane) {
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
      const Worth worth(ml[nt][lane].x, x.ml[nt][lane].x);
      ml[nt][lane] = {worth.m, worth.sum(ml[nt][lane].y, x.ml[nt][lane].y)};
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
        const float2 before = o[nt][i][lane], added = x.o[nt][i][lane];
        o[nt][i][lane] = {worth.sum(before.x, added.x), worth.sum(before.y, added.y)};
      }
    }
  }
};

template <int D>
struct PrefillShared {
  static constexpr int kNT = prefill_pairs(D) / 4;
  static constexpr int kStages = 4;  // more do not fit an A100
  unsigned char ring[kStages][Shape<D>::kStageBytes];
  Part<D, kNT> run[kPrefillTiles], total[kPrefillTiles];
  AttendTile tiles[kPrefillTiles];
  int n_tiles;  // that have queries
  uint64_t full[kStages], empty[kStages];
};

/// What the queries of a page read, piece by piece: in each share of each run its packed pages, then keys and
/// values of its 16 tokens of the full ones.
struct Pieces {
  enum class Side { Packed, Keys, Values };
  const AttendTile& tile;
  int run = 0, share = 0, page = 0;
  Side side = Side::Packed;

  /// Goes on to the first piece that is there from here on; false where none is.
  __device__ __forceinline__ bool find() {
    const int n_pages = tile.query_page + 1, packed_begin = tile.packed_begin, packed_end = tile.packed_end;
    for (; run <= run_of(n_pages - 1); next_share()) {
      const int begin = run_begin(run), end = min(run_begin(run + 1), n_pages);
      if (side == Side::Packed) {
        if (page < packed_begin) page += (packed_begin - page + kWarps - 1) / kWarps * kWarps;
        if (page < min(end, packed_end)) return true;
        side = Side::Keys;
        page = begin + share / 4;
      }
      if (page >= packed_begin && page < packed_end) page += (packed_end - page + 1) & ~1;
      if (page < end) return true;
    }
    return false;
  }
  __device__ __forceinline__ void step() {
    if (side == Side::Packed)
      page += kWarps;
    else if (side == Side::Keys)
      side = Side::Values;
    else
      side = Side::Keys, page += 2;
  }
  __device__ void next_share() {
    share = (share + 1) % kWarps;
    run += share == 0;
    page = run_begin(run) + share;
    side = Side::Packed;
  }
};

/// A warp's view of the ring. Every warp counts all pieces, and fills the stage of each n-th.
template <int D>
struct SharedRing {
  using S = Shape<D>;
  static constexpr int kStages = PrefillShared<D>::kStages, kAhead = kStages / 2;
  const AttendArgs& args;
  PrefillShared<D>& shared;
  const int kv_head, lane;
  Pieces ahead{shared.tiles[0]};
  int until_turn;  // pieces that others fill before this warp's next
  uint32_t filled = 0, read = 0;

  __device__ SharedRing(const AttendArgs& a, PrefillShared<D>& s, int kv_head_, int w)
      : args(a), shared(s), kv_head(kv_head_), lane(threadIdx.x % 32), until_turn(w) {
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
    if (!ahead.find()) return;
    if (until_turn == 0) {
      until_turn = shared.n_tiles;
      copy(args, shared, kv_head, ahead.page, ahead.share, ahead.side, filled);
    }
    until_turn--;
    filled++;
    ahead.step();
  }
  /// Values alone: the ring stays in registers.
  static __device__ __noinline__ void copy(const AttendArgs& args, PrefillShared<D>& shared, int kv_head,
                                           int page, int share, Pieces::Side side, uint32_t filled) {
    const AttendTile& tile = shared.tiles[0];
    const uint32_t stage = filled % kStages, lane = threadIdx.x % 32;
    const bool packed = side == Pieces::Side::Packed;
    const std::byte* from;
    if (packed) {
      from = args.packed.head(__ldg(tile.packed_pages + page), kv_head);
    } else {
      from = args.full.head(__ldg(tile.full_pages + page), kv_head) + share % 4 * S::kFullTile;
      if (side == Pieces::Side::Values) from += kPage * D * 2;
    }
    const int bytes = packed ? S::kBytes : S::kFullTile;
    if (filled >= kStages) wait_barrier(&shared.empty[stage], (filled / kStages - 1) & 1);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (lane == 0) copy_page(shared.ring[stage], from, bytes, &shared.full[stage]);
#else
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
  SharedRing<D> ring(args, shared, kv_head, w);
  Part<D, NT>&run_part = shared.run[w], &total = shared.total[w];
  const int n_pages = tile.query_page + 1, packed_begin = tile.packed_begin, packed_end = tile.packed_end;
  Sums<D, NT> sums;
#pragma unroll 1
  for (int run = 0; run <= run_of(n_pages - 1); run++) {
    const int begin = run_begin(run), end = min(run_begin(run + 1), n_pages);
    Part<D, NT>& part = run == 0 ? total : run_part;
#pragma unroll 1
    for (int share = 0; share < kWarps; share++) {  // the order of Pieces
      sums.start();
      int page = begin + share;
      if constexpr (kReadsPacked) {
        if (page < packed_begin) page += (packed_begin - page + kWarps - 1) / kWarps * kWarps;
#pragma unroll 1
        for (; page < min(end, packed_end); page += kWarps) {
          packed.take(ring.wait(), sums);
          ring.done();
        }
      }
#pragma unroll 1
      for (page = begin + share / 4; page < end; page += 2) {
        if (page >= packed_begin && page < packed_end) page += (packed_end - page + 1) & ~1;
        if (page >= end) break;
        uint32_t p[NT][2];
        float worth[NT];
        const auto multiply = [&](const auto& queries) {
          full.keys(ring.wait(), share % 4, page == n_pages - 1, queries, sums, p, worth);
        };
        if constexpr (kReadsPacked)
          multiply(QueriesInMemory<D, NT>{pairs});
        else
          multiply(q);
        ring.done();
        full.values(ring.wait(), share % 4, page == n_pages - 1, p, worth, sums);
        ring.done();
      }
      sums.close();
      if (share == 0)
        part.set(sums, lane);
      else
        part.add(sums, lane);
    }
    if (run > 0) total.add(run_part, lane);
  }
#pragma unroll
  for (int nt = 0; nt < NT; nt++) {
    const int pair = 4 * nt + (lane & 3);
    if (pair >= pairs.n()) continue;
    float* to = args.out + pairs.row_of(pair) * D + (lane >> 2);
    const float l = total.ml[nt][lane].y;
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
  if (w < shared.n_tiles) attend_tile<D, kReadsPacked>(args, shared, kv_head, w, lane);
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
  if (args.prefill_reads_packed)
    launch_prefill<D, true>(args, stream);
  else
    launch_prefill<D, false>(args, stream);
}

}  // namespace kv2::cuda
