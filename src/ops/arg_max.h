// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

namespace kv2 {

/// Index of the largest value, the smaller of equal ones; NaN and -inf are never it. -1: there is nothing
/// else.
inline int32_t arg_max(std::span<const float> values) {
  int32_t best = -1;
  for (size_t i = 0; i < values.size(); i++)
    if (values[i] > (best < 0 ? -INFINITY : values[best])) best = static_cast<int32_t>(i);
  return best;
}

}  // namespace kv2
