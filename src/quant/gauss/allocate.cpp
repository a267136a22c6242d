// SPDX-License-Identifier: Apache-2.0
#include "quant/gauss/allocate.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "quant/gauss/levels.h"

namespace kv2::gauss {

std::vector<int> allocate_bits(std::span<const float> energies, int bits_each) {
  KV2_CHECK(bits_each >= 1 && bits_each <= kMaxBits && !energies.empty(), "{} bits for {} channels",
            bits_each, energies.size());
  std::vector<int> bits(energies.size(), 1);
  const auto gain = [&](size_t c) {
    return bits[c] == kMaxBits ? -1.0f : energies[c] * (kError[bits[c]] - kError[bits[c] + 1]);
  };
  for (size_t left = energies.size() * static_cast<size_t>(bits_each - 1); left > 0; left--) {
    size_t best = 0;
    for (size_t c = 1; c < bits.size(); c++)
      if (gain(c) > gain(best)) best = c;
    bits[best]++;
  }
  return bits;
}

std::vector<float> rope_block_tables(std::span<const float> energies, int bits_each) {
  double sum = 0;
  for (const float e : energies) sum += e;
  const double mean = sum > 0 ? sum / static_cast<double>(energies.size()) : 1.0;
  std::vector<float> out;
  for (const int b : allocate_bits(energies, bits_each)) out.push_back(static_cast<float>(b));
  for (const float e : energies)  // a channel that calibration never saw move still needs a spread
    out.push_back(static_cast<float>(std::sqrt(std::max(e / mean, 1e-6))));
  return out;
}

}  // namespace kv2::gauss
