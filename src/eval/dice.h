// SPDX-License-Identifier: Apache-2.0
// Dice: random choices that are the same on every machine (splitmix64; the standard library's distributions
// and shuffles differ between implementations).
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace kv2 {

class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// In [0, n); n >= 1. The bias of the remainder is below 2^-40 for the small n of this folder.
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
  /// In [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  template <class T>
  const T& pick(const std::vector<T>& list) {
    return list[static_cast<size_t>(below(static_cast<int64_t>(list.size())))];
  }
  template <class T>
  void shuffle(std::vector<T>& list) {
    for (size_t i = list.size(); i > 1; i--)
      std::swap(list[i - 1], list[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
  }

 private:
  uint64_t state_;
};

/// A seed of its own for every named thing under one seed, so that adding one changes no other.
inline uint64_t seed_for(uint64_t seed, std::string_view name, int64_t index) {
  uint64_t h = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  Dice mix(seed ^ h);
  return mix.next() ^ Dice(static_cast<uint64_t>(index)).next();
}

}  // namespace kv2
