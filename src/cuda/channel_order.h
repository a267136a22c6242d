// SPDX-License-Identifier: Apache-2.0
// The private layout, on a GPU, of packed pages with keys coded per channel (omni2, kivi2): K in codes of 2
// bits per channel and 32 tokens, V in codes of 2 bits per token and 32 channels, both with offsets. Lane l
// has g = l / 4 and t = l % 4; fragments are those of mma.m16n8k32 (fragment.h). A lane gets logits of the
// tokens 4g..4g+3 and 32 + 4g..+3, in this order: halves of a page are K's groups, so a tile of 16 tokens
// lies in one of them.
//
//   norms     [64] fp32, as in the canonical form
//   K head    codes    [d / 32 steps][32 lanes][4 words]: byte = channel 4t..4t+3, fragment f = 16 tokens,
//                      row g + 8r is token 32(f / 2) + 4g + 2(f % 2) + r
//             scales   fp16 [2 groups][d / 64][2][4 t][2][4]: channel 64a + 32x + 16h + 4t + k at
//             [a][h][t][x][k],
//                      what lane (h, t) turns into digits of a query
//             offsets  fp16 [d / 16][4 t][4][2]: A fragments of mma.m16n8k16 whose rows 0..7 are all group 0
//                      and rows 8..15 group 1
//   V head    codes    [d / 64][2 steps][32 lanes][4 words]: byte = token, fragment f = 16 channels;
//                      columns of step s are tokens 32s + 8t + 4(b / 2) + 2j + b % 2, j: register / 2
//             params   fp16 [d / 32 groups][scale, offset][8 g][8 tokens]
//
// Sizes are those of the canonical form. Host and device code.
#pragma once

#include "cuda/fragment.h"

namespace kv2::cuda {

/// Groups of tokens (K) or of channels (V).
inline constexpr int kChannelGroup = 32;

/// The head dims that attend_channels.cuh has kernels for.
KV2_BOTH bool fragments_channels(int d) {
  return d == 64 || d == 128;
}
/// Bytes of codes, and of codes and params, of a head's K or V.
KV2_BOTH int channel_codes_bytes(int d) {
  return 16 * d;
}
KV2_BOTH int channel_head_bytes(int d) {
  return 24 * d;
}

/// Whose code is in byte `byte` and field `f` (bits 2f) of a word.
KV2_BOTH CodeOf channel_k_of(int word, int f, int byte) {
  const int step = word >> 7, lane = (word >> 2) & 31, reg = word & 3;
  return {32 * (f >> 1) + 4 * (lane >> 2) + 2 * (f & 1) + (reg & 1),
          32 * step + 16 * (reg >> 1) + 4 * (lane & 3) + byte};
}
KV2_BOTH CodeOf channel_v_of(int word, int f, int byte) {
  const int quad = word >> 8, step = (word >> 7) & 1, lane = (word >> 2) & 31, reg = word & 3;
  return {32 * step + 8 * (lane & 3) + 4 * (byte >> 1) + 2 * (reg >> 1) + (byte & 1),
          16 * (4 * quad + f) + (lane >> 2) + 8 * (reg & 1)};
}

/// Index in halves of a param, from the end of the codes.
KV2_BOTH int channel_k_scale_at(int d, int group, int channel) {
  const int a = channel >> 6, x = (channel >> 5) & 1, h = (channel >> 4) & 1, t = (channel >> 2) & 3;
  return ((((group * (d >> 6) + a) * 2 + h) * 4 + t) * 2 + x) * 4 + (channel & 3);
}
KV2_BOTH int channel_k_offset_at(int d, int group, int channel) {
  const int t = (channel & 7) >> 1, reg = group + 2 * ((channel >> 3) & 1);
  return 2 * d + (((channel >> 4) * 4 + t) * 4 + reg) * 2 + (channel & 1);
}
/// `kind` 0: scale, 1: offset.
KV2_BOTH int channel_v_param_at(int token, int group, int kind) {
  return ((group * 2 + kind) * 8 + ((token >> 2) & 7)) * 8 + 4 * (token >> 5) + (token & 3);
}

/// Where half `i` of a head's canonical params, [lines][groups][scale, offset], belongs.
KV2_BOTH int channel_param_at(bool is_v, int d, int i) {
  const int groups = is_v ? d / kChannelGroup : 2;
  const int kind = i & 1, group = (i >> 1) % groups, line = (i >> 1) / groups;
  if (is_v) return channel_v_param_at(line, group, kind);
  return kind ? channel_k_offset_at(d, group, line) : channel_k_scale_at(d, group, line);
}

}  // namespace kv2::cuda
