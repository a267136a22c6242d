// SPDX-License-Identifier: Apache-2.0
// LogHistogram: quantiles of positive numbers from a stream in fixed memory, each within 1.1 % (bins a 64th
// of an octave wide); minimum, maximum and mean are exact.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace kv2 {

class LogHistogram {
 public:
  /// Values that are not above 2⁻³² count as that, values from 2³² on as just below it.
  void add(double x) {
    min_ = n_ == 0 ? x : std::min(min_, x);
    max_ = n_ == 0 ? x : std::max(max_, x);
    n_++;
    sum_ += x;
    sum2_ += x * x;
    const double bin = x > 0 ? (std::log2(x) + kOctaves / 2) * kPerOctave : 0;
    bins_[static_cast<size_t>(std::clamp(bin, 0.0, double(kBins - 1)))]++;
  }

  int64_t count() const { return n_; }
  double min() const { return min_; }
  double max() const { return max_; }
  double mean() const { return n_ > 0 ? sum_ / static_cast<double>(n_) : 0; }
  /// Standard deviation ÷ mean.
  double variation() const {
    const double m = mean();
    return m > 0 ? std::sqrt(std::max(0.0, sum2_ / static_cast<double>(n_) - m * m)) / m : 0;
  }
  /// The value below which a share q of the values lies; 0 where there are none.
  double quantile(double q) const {
    int64_t rank = static_cast<int64_t>(q * static_cast<double>(n_ - 1) + 0.5);
    for (size_t i = 0; i < kBins && n_ > 0; i++) {
      if (rank < bins_[i] && (i == 0 || i == kBins - 1)) return i == 0 ? min_ : max_;  // what has no bin
      if (rank < bins_[i])
        return std::clamp(std::exp2((static_cast<double>(i) + 0.5) / kPerOctave - kOctaves / 2), min_, max_);
      rank -= bins_[i];
    }
    return max_;
  }

 private:
  static constexpr int kOctaves = 64, kPerOctave = 64;
  static constexpr size_t kBins = kOctaves * kPerOctave;
  std::array<int64_t, kBins> bins_{};
  int64_t n_ = 0;
  double min_ = 0, max_ = 0, sum_ = 0, sum2_ = 0;
};

}  // namespace kv2
