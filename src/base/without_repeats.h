// SPDX-License-Identifier: Apache-2.0
// A list that a user gave, each value once and in its order: what is named twice is judged once.
#pragma once

#include <algorithm>
#include <vector>

namespace kv2 {

template <class T>
std::vector<T> without_repeats(const std::vector<T>& all) {
  std::vector<T> out;
  for (const T& x : all)
    if (std::find(out.begin(), out.end(), x) == out.end()) out.push_back(x);
  return out;
}

}  // namespace kv2
