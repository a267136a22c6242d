// SPDX-License-Identifier: Apache-2.0
#include "eval/block_means.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace kv2 {
namespace {

int64_t block_size(size_t block, int64_t n) {
  return std::min(kBlockPositions, n - static_cast<int64_t>(block) * kBlockPositions);
}

double mean_of(std::span<const double> means, int64_t n) {
  double sum = 0;
  for (size_t i = 0; i < means.size(); i++) sum += means[i] * static_cast<double>(block_size(i, n));
  return sum / static_cast<double>(n);
}

}  // namespace

std::vector<double> block_means(std::span<const float> values) {
  std::vector<double> out;
  for (size_t begin = 0; begin < values.size(); begin += kBlockPositions) {
    const auto block = values.subspan(begin, std::min<size_t>(kBlockPositions, values.size() - begin));
    double sum = 0;
    for (const float x : block) sum += x;
    out.push_back(sum / static_cast<double>(block.size()));
  }
  return out;
}

// Blocks of n_b values around the mean m of all: a ratio estimate, Σ (n_b·(m_b − m))² · B/(B − 1) / n².
double standard_error(std::span<const double> means, int64_t n) {
  if (means.size() < 2) return std::numeric_limits<double>::quiet_NaN();
  const double mean = mean_of(means, n);
  double square = 0;
  for (size_t i = 0; i < means.size(); i++) {
    const double off = static_cast<double>(block_size(i, n)) * (means[i] - mean);
    square += off * off;
  }
  const auto blocks = static_cast<double>(means.size());
  return std::sqrt(square * blocks / (blocks - 1)) / static_cast<double>(n);
}

PairedDifference paired_difference(std::span<const double> a, std::span<const double> b, int64_t n) {
  KV2_CHECK(a.size() == b.size(), "{} blocks against {}", a.size(), b.size());
  std::vector<double> difference(a.size());
  for (size_t i = 0; i < a.size(); i++) difference[i] = a[i] - b[i];
  return {mean_of(difference, n), standard_error(difference, n)};
}

}  // namespace kv2
