// SPDX-License-Identifier: Apache-2.0
// The private layout of head pages on a GPU: the order in which lanes of a warp feed mma.m16n8k16. Lane l has
// g = l / 4 and t = l % 4; one A fragment (16 × 16) is four words of two halves in each lane.
//
//   register   0         1           2         3             K: rows are tokens,   columns channels
//   row        g         g + 8       g         g + 8         V: rows are channels, columns tokens
//   columns    2t, 2t+1  2t, 2t+1    2t+8, +9  2t+8, +9
//
//   full head page    K [4 token tiles][d/16][32 lanes][4 words], then V the same: 16 bytes a lane, coalesced
//   packed head page  codes [4/tiles a word][32 lanes][4 words], K then V, then canonical params; a word
//   holds
//                     the same register of 8 fragments: fragment f in bits 2f and 2f + 16
//
// Sizes are those of the canonical form. Full pages are in this order where d is a multiple of 16, packed
// ones where also d is 64 or 128 and its own group; everything else is canonical. Host and device code.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define KV2_BOTH __host__ __device__ __forceinline__
#else
#define KV2_BOTH inline
#endif

namespace kv2::cuda {

KV2_BOTH bool fragments_full(int d) {
  return d % 16 == 0;
}
KV2_BOTH bool fragments_packed(int d, int group) {
  return (d == 64 || d == 128) && group == d;
}

/// Where (row, column) of a 16 × 16 fragment stands, in halves: (lane·4 + register)·2 + half.
KV2_BOTH int fragment_at(int row, int column) {
  const int lane = (row & 7) * 4 + ((column & 7) >> 1);
  const int reg = (row >> 3) + 2 * (column >> 3);
  return (lane * 4 + reg) * 2 + (column & 1);
}

/// Index in halves into K, or V, of a full head page.
KV2_BOTH int full_k_at(int d, int token, int channel) {
  if (!fragments_full(d)) return token * d + channel;
  return ((token >> 4) * (d >> 4) + (channel >> 4)) * 256 + fragment_at(token & 15, channel & 15);
}
KV2_BOTH int full_v_at(int d, int token, int channel) {
  if (!fragments_full(d)) return token * d + channel;
  return ((token >> 4) * (d >> 4) + (channel >> 4)) * 256 + fragment_at(channel & 15, token & 15);
}

/// A code's place in a packed page in fragment order: 32-bit word and lowest bit.
struct CodeAt {
  int word, bit;
};
KV2_BOTH CodeAt packed_at(int d, int tile, int step, int in_fragment) {
  const int steps = d >> 4, tiles_per_word = 8 / steps;
  const int field = (tile % tiles_per_word) * steps + step;
  return {(tile / tiles_per_word) * 128 + (in_fragment >> 1), 2 * field + 16 * (in_fragment & 1)};
}
KV2_BOTH CodeAt packed_k_at(int d, int token, int channel) {
  return packed_at(d, token >> 4, channel >> 4, fragment_at(token & 15, channel & 15));
}
KV2_BOTH CodeAt packed_v_at(int d, int token, int channel) {
  return packed_at(d, token >> 4, channel >> 4, fragment_at(channel & 15, token & 15));
}

}  // namespace kv2::cuda
