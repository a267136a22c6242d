// SPDX-License-Identifier: Apache-2.0
// What every coder does to a vector before it looks at groups: finite values, then a symmetric per-token clip
// at an order statistic of |x| over the whole head vector (no interpolation). Part of the coder's
// specification.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "base/float16.h"
#include "quant/coder.h"

namespace kv2 {

/// NaN counts as +0, infinities as the largest finite bf16 of their sign; everything else is itself.
inline bf16 finite(bf16 x) {
  const uint16_t magnitude = x.bits & 0x7fff;
  if (magnitude > 0x7f80) return {0};
  return {static_cast<uint16_t>((x.bits & 0x8000) | std::min<uint16_t>(magnitude, 0x7f7f))};
}

/// Clamps x to ±(element `index` of |x| in ascending order). index -1: nothing happens. x finite, at most
/// kMaxHeadDim.
inline void clip(std::span<float> x, int index) {
  if (index < 0) return;
  float magnitude[kMaxHeadDim];
  std::transform(x.begin(), x.end(), magnitude, [](float v) { return std::fabs(v); });
  std::nth_element(magnitude, magnitude + index, magnitude + x.size());
  const float threshold = magnitude[index];
  for (float& v : x) v = std::clamp(v, -threshold, threshold);
}

}  // namespace kv2
