// SPDX-License-Identifier: Apache-2.0
// The best levels of 1 to 4 bits for a Gaussian of spread 1 (Lloyd-Max; recomputed in double precision to all
// digits here) and the borders halfway between them.
#pragma once

#include <cstdint>

namespace kv2::gauss {

inline constexpr int kMaxBits = 4;

inline constexpr float kPositiveLevels[kMaxBits][8] = {
    {0.797884561f},
    {0.452780035f, 1.510417608f},
    {0.245094179f, 0.756005281f, 1.343909279f, 2.151945705f},
    {0.128395030f, 0.388048299f, 0.656759119f, 0.942340456f, 1.256231197f, 1.618046386f, 2.069017227f,
     2.732589571f}};

/// The 2^(bits-1) positive levels, ascending.
constexpr const float* positive_levels(int bits) {
  return kPositiveLevels[bits - 1];
}

/// Level of a code, ascending from the most negative.
constexpr float level(int bits, int code) {
  const int half = 1 << (bits - 1);
  return code >= half ? positive_levels(bits)[code - half] : -positive_levels(bits)[half - 1 - code];
}

/// The code of the nearest level; z on a border has the level nearer to zero, z = 0 the positive one.
constexpr uint8_t code_of(int bits, float z) {
  const int half = 1 << (bits - 1);
  const float* levels = positive_levels(bits);
  const float a = z < 0 ? -z : z;
  int i = 0;
  while (i + 1 < half && a > (levels[i] + levels[i + 1]) * 0.5f) i++;
  return static_cast<uint8_t>(z < 0 ? half - 1 - i : half + i);
}

}  // namespace kv2::gauss
