// SPDX-License-Identifier: Apache-2.0
#include "eval/loops.h"

#include <algorithm>
#include <vector>

namespace kv2 {
namespace {

bool longer(const Loop& a, const Loop& b) {
  return a.length > b.length;  // periods are tried in ascending order, beginnings too
}

/// Different runs of n tokens, of `total` > 0 runs.
int64_t distinct_runs(std::span<const int32_t> tokens, int n, int64_t total) {
  std::vector<int64_t> starts(static_cast<size_t>(total));
  for (int64_t i = 0; i < total; i++) starts[i] = i;
  const auto less = [&](int64_t a, int64_t b) {
    return std::lexicographical_compare(tokens.begin() + a, tokens.begin() + a + n, tokens.begin() + b,
                                        tokens.begin() + b + n);
  };
  std::sort(starts.begin(), starts.end(), less);
  int64_t distinct = 1;
  for (int64_t i = 1; i < total; i++) distinct += less(starts[i - 1], starts[i]);
  return distinct;
}

}  // namespace

Loop longest_loop(std::span<const int32_t> tokens) {
  const auto n = static_cast<int64_t>(tokens.size());
  Loop best;
  for (int64_t period = 1; period <= std::min(kLongestPeriod, n / 2); period++) {
    int64_t equal = 0;  // tokens in a row that equal the one a period before
    for (int64_t i = period; i <= n; i++) {
      if (i < n && tokens[i] == tokens[i - period]) {
        equal++;
        continue;
      }
      const Loop found{i - equal - period, equal + period, period};
      if (equal >= period && longer(found, best)) best = found;
      equal = 0;
    }
  }
  return best;
}

Loop loop_at_end(std::span<const int32_t> tokens) {
  const auto n = static_cast<int64_t>(tokens.size());
  Loop best;
  for (int64_t period = 1; period <= std::min(kLongestPeriod, n / 2); period++) {
    int64_t equal = 0;
    while (n - 1 - equal >= period && tokens[n - 1 - equal] == tokens[n - 1 - equal - period]) equal++;
    const Loop found{n - equal - period, equal + period, period};
    if (equal >= period && longer(found, best)) best = found;
  }
  return best;
}

bool collapsed(std::span<const int32_t> tokens) {
  return loop_at_end(tokens).length >= kCollapseTokens;
}

bool stuck(std::span<const int32_t> tokens) {
  if (tokens.size() < static_cast<size_t>(kCollapseTokens)) return false;
  constexpr int kRun = 4;
  return distinct_runs(tokens.last(kCollapseTokens), kRun, kCollapseTokens - kRun + 1) <= kLongestPeriod;
}

double distinct_ratio(std::span<const int32_t> tokens, int n) {
  const int64_t total = static_cast<int64_t>(tokens.size()) - n + 1;
  if (total < 1) return 1;
  return static_cast<double>(distinct_runs(tokens, n, total)) / static_cast<double>(total);
}

}  // namespace kv2
