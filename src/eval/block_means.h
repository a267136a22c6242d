// SPDX-License-Identifier: Apache-2.0
// Standard errors of a mean over positions of a text. Neighbouring positions share their history, so they
// say less than as many independent ones: the error comes from the means of runs of 256 positions, each run
// one sample. What grows along a text is part of the spread of the runs, so the error is rather too large
// than too small; of a difference of two methods on the same positions both fall out for the most part.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kv2 {

inline constexpr int64_t kBlockPositions = 256;

/// Means of runs of kBlockPositions values, the last one of what is left.
std::vector<double> block_means(std::span<const float> values);

/// Of the mean over n values from their block means; NaN where there are fewer than two.
double standard_error(std::span<const double> means, int64_t n);

/// mean(a) − mean(b) over the same n positions, and its standard error.
struct PairedDifference {
  double difference = 0, standard_error = 0;
};
PairedDifference paired_difference(std::span<const double> a, std::span<const double> b, int64_t n);

}  // namespace kv2
