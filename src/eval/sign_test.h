// SPDX-License-Identifier: Apache-2.0
// The exact sign test of paired yes-or-no outcomes (McNemar's test): only pairs that differ say something.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace kv2 {

/// Probability that chance alone splits a + b differing pairs at least as unevenly as a to b, either way
/// round: 1 where there are none.
inline double sign_test(int64_t a, int64_t b) {
  const int64_t n = a + b, few = std::min(a, b);
  double tail = 0;  // P(X ≤ few), X of n throws of a coin
  for (int64_t i = 0; i <= few; i++) {
    const auto x = static_cast<double>(i), m = static_cast<double>(n);
    tail += std::exp(std::lgamma(m + 1) - std::lgamma(x + 1) - std::lgamma(m - x + 1) - m * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

}  // namespace kv2
