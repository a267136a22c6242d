// SPDX-License-Identifier: Apache-2.0
// What the queries of a page read in a run of pages, and in which order: that of attend_kernel.cuh's warps,
// one after the other.
#pragma once

#include "cuda/attend_shape.cuh"

namespace kv2::cuda::attention {

/// A piece of a page that is copied at once: a packed page, or keys or values of 16 tokens of a full one.
struct Piece {
  uint32_t word;  // slot·16 + what; what: 0 to 3 keys, 4 to 7 values, 8 packed
  static __device__ Piece packed(int32_t slot) { return {static_cast<uint32_t>(slot) << 4 | 8}; }
  static __device__ Piece keys(int32_t slot, int tile16) {
    return {static_cast<uint32_t>(slot) << 4 | static_cast<uint32_t>(tile16)};
  }
  static __device__ Piece values(int32_t slot, int tile16) { return {keys(slot, tile16).word | 4}; }
};

/// Pages of a run that are read packed and full, in the order of its shares: those that warp `share` of
/// attend_kernel takes, packed pages first.
struct Run {
  int begin, end, packed_begin, packed_end;

  __device__ Run(const AttendTile& tile, int run)
      : begin(Runs{tile.query_page}.begin(run)),
        end(Runs{tile.query_page}.end(run)),
        packed_begin(min(max(begin, tile.packed_begin), end)),
        packed_end(max(packed_begin, min(end, tile.packed_end))) {}

  /// Pages of [from, to) that are a multiple of `stride` behind `first`, which is at most `from` + stride.
  static __device__ int count(int from, int to, int first, int stride) {
    const int skipped = max(0, from - first + stride - 1) / stride;
    return max(0, to - first - skipped * stride + stride - 1) / stride;
  }
  __device__ int n_packed(int share) const { return count(packed_begin, packed_end, begin + share, kWarps); }
  /// Full pages before `page` of those with a share's tokens: every second page.
  __device__ int n_full(int share, int page) const {
    const int first = begin + share / 4;
    return count(begin, page, first, 2) - count(packed_begin, min(page, packed_end), first, 2);
  }
  __device__ int n_pieces(int share) const { return n_packed(share) + 2 * n_full(share, end); }
};

inline constexpr int kMaxPieces = 8 * kMaxRunPages;  // of a run

/// By n threads: the pieces of a run in order.
__device__ inline void list_pieces(const AttendTile& tile, int index, Piece* to, int& n_pieces, int thread,
                                   int n_threads) {
  const Run run(tile, index);
  for (int i = thread; i < 4 * (run.end - run.begin); i += n_threads) {
    const int page = run.begin + i / 4, tile16 = i % 4;
    const bool is_packed = page >= run.packed_begin && page < run.packed_end;
    if (is_packed && tile16 > 0) continue;
    const int share = is_packed ? (page - run.begin) % kWarps : (page - run.begin) % 2 * 4 + tile16;
    int at = 0;
    for (int before = 0; before < share; before++) at += run.n_pieces(before);
    if (is_packed) {
      to[at + Run::count(run.packed_begin, page, run.begin + share, kWarps)] =
          Piece::packed(__ldg(tile.packed_pages + page));
    } else {
      at += run.n_packed(share) + 2 * run.n_full(share, page);
      const int32_t slot = __ldg(tile.full_pages + page);
      to[at] = Piece::keys(slot, tile16);
      to[at + 1] = Piece::values(slot, tile16);
    }
  }
  if (thread == 0) {
    int n = 0;
    for (int share = 0; share < kWarps; share++) n += run.n_pieces(share);
    n_pieces = n;
  }
}

}  // namespace kv2::cuda::attention
