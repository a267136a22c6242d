// SPDX-License-Identifier: Apache-2.0
// The private layout of head pages on a GPU: the order in which lanes of a warp feed mma. Lane l has g = l /
// 4 and t = l % 4.
//
// Full pages: fragments of mma.m16n8k16, four words of two halves in each lane.
//
//   register   0         1           2         3             K: rows are tokens,   columns channels
//   row        g         g + 8       g         g + 8         V: rows are channels, columns tokens
//   columns    2t, 2t+1  2t, 2t+1    2t+8, +9  2t+8, +9
//
//   full head page    K [4 token tiles][d/16][32 lanes][4 words], then V the same: 16 bytes a lane, coalesced
//
// Packed pages: fragments of mma.m16n8k32 on bytes, registers as above with columns 4t..4t+3 and 4t+16..+19.
// A word holds the same register of four fragments, so that `word & 0x03030303 << 2f` is fragment f with
// codes times 4^f: nothing is shifted. Rows of K are tokens, the four fragments are four tiles of them; rows
// of V are channels, the four fragments four tiles of channels. Tokens are numbered so that a lane finds the
// eight that it gets logits of side by side, 8g to 8g + 7:
//   K tile f, row g + 8r            token 8g + 2f + r
//   V columns 4t..4t+3 (+16) of step s   tokens 16t + 2j, +1, 16t + 8 + 2j, +1 with j = 2s (+1)
// d = 64a + 32b + 16c:
//   K codes   [d / 32 steps][32 lanes][4 words], then c times [32 lanes][2 words]: 16 channels, registers 0,
//   1 V codes   [a][2 steps][32 lanes][4 words];
//             b times [32 lanes][4 words]: fields 2s + x are channel tile 4a + x of step s
//             c times [32 lanes][2 words]: word s, fields are the four registers of the last channel tile
//   then the params of the canonical form.
//
// Sizes are those of the canonical form. Full pages are in this order where d is a multiple of 16, packed
// ones where fragments_packed says so; everything else is canonical. Host and device code.
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
/// The head dims and groups that attend.cu has kernels for.
KV2_BOTH bool fragments_packed(int d, int group) {
  if (d == 192 || d == 256) return group == d / 2;
  return group == d && (d == 64 || d == 80 || d == 96 || d == 112 || d == 128);
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
KV2_BOTH CodeAt packed_k_at(int d, int token, int channel) {
  const int lane = (token >> 3) * 4 + ((channel >> 2) & 3), bit = 8 * (channel & 3) + (token & 6);
  const int step = channel >> 5, reg = (token & 1) + 2 * ((channel >> 4) & 1);
  const bool half_step = step >= d >> 5;
  return {half_step ? step * 128 + lane * 2 + reg : step * 128 + lane * 4 + reg, bit};
}
KV2_BOTH CodeAt packed_v_at(int d, int token, int channel) {
  const int a = d >> 6, tile = channel >> 4, j = (token >> 1) & 3, step = j >> 1;
  const int lane = (channel & 7) * 4 + (token >> 4), reg = ((channel >> 3) & 1) + 2 * (j & 1);
  const int byte = 2 * ((token >> 3) & 1) + (token & 1);
  if (tile < 4 * a) return {((tile >> 2) * 2 + step) * 128 + lane * 4 + reg, 8 * byte + 2 * (tile & 3)};
  const int pairs = (d >> 5) & 1;
  if (pairs && tile < 4 * a + 2)
    return {2 * a * 128 + lane * 4 + reg, 8 * byte + 2 * (tile - 4 * a + 2 * step)};
  return {(2 * a + pairs) * 128 + lane * 2 + step, 8 * byte + 2 * reg};
}

/// The other way round: whose code is in byte `byte` and field `f` (bits 2f) of a word.
struct CodeOf {
  int token, channel;
};
KV2_BOTH CodeOf packed_k_of(int d, int word, int f, int byte) {
  const int steps = d >> 5, in_half = word - steps * 128;
  const int step = in_half < 0 ? word >> 7 : steps;
  const int lane = in_half < 0 ? (word >> 2) & 31 : in_half >> 1, reg = in_half < 0 ? word & 3 : in_half & 1;
  return {8 * (lane >> 2) + 2 * f + (reg & 1), 32 * step + 16 * (reg >> 1) + 4 * (lane & 3) + byte};
}
KV2_BOTH CodeOf packed_v_of(int d, int word, int f, int byte) {
  const int quads = d >> 6, pairs = (d >> 5) & 1, set = word >> 7;
  const int in_half = word - (2 * quads + pairs) * 128;
  int lane = (word >> 2) & 31, reg = word & 3, tile = 4 * (set >> 1) + f, step = set & 1;
  if (in_half >= 0)
    lane = in_half >> 1, step = in_half & 1, reg = f, tile = (d >> 4) - 1;
  else if (set >= 2 * quads)
    tile = 4 * quads + (f & 1), step = f >> 1;
  const int j = 2 * step + (reg >> 1);
  return {16 * (lane & 3) + 8 * (byte >> 1) + 2 * j + (byte & 1), 16 * tile + (lane >> 2) + 8 * (reg & 1)};
}

}  // namespace kv2::cuda
