// SPDX-License-Identifier: Apache-2.0
#include "eval/block_means.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kv2 {
namespace {

TEST(BlockMeans, OfRunsOf256AndWhatIsLeft) {
  std::vector<float> x(256 + 256 + 100, 1.0f);
  std::fill(x.begin() + 256, x.begin() + 512, 3.0f);
  std::fill(x.begin() + 512, x.end(), -2.0f);
  const std::vector<double> means = block_means(x);
  EXPECT_EQ(means, (std::vector<double>{1, 3, -2}));
  const double n = 612, mean = (256 + 768 - 200) / n;
  const double square =
      std::pow(256 * (1 - mean), 2) + std::pow(256 * (3 - mean), 2) + std::pow(100 * (-2 - mean), 2);
  EXPECT_NEAR(standard_error(means, 612), std::sqrt(square * 3 / 2) / n, 1e-12);
  EXPECT_TRUE(std::isnan(standard_error(block_means(std::vector<float>(200, 1.0f)), 200)));
  EXPECT_TRUE(block_means({}).empty());
}

// Of a correlated series the spread of many means is what the error says; that of independent values would
// be four times too small.
TEST(BlockMeans, IsTheSpreadOfTheMeanOfACorrelatedSeries) {
  std::mt19937 dice(7);
  std::normal_distribution<double> normal;
  const int n = 8192, repeats = 200;
  double sum = 0, square = 0, said = 0;
  for (int r = 0; r < repeats; r++) {
    std::vector<float> x;
    double state = 0, total = 0;
    for (int i = 0; i < n; i++) {
      state = 0.9 * state + normal(dice);
      x.push_back(static_cast<float>(5 + state));
      total += x.back();
    }
    sum += total / n;
    square += total / n * (total / n);
    said += standard_error(block_means(x), n);
  }
  const double spread = std::sqrt(square / repeats - sum / repeats * (sum / repeats));
  EXPECT_NEAR(said / repeats / spread, 1, 0.15);
}

TEST(BlockMeans, ADifferenceLosesWhatBothShare) {
  std::mt19937 dice(11);
  std::normal_distribution<float> normal;
  std::vector<float> a, b;
  for (int i = 0; i < 4000; i++) {
    const float shared = static_cast<float>(i) / 1000 + normal(dice);
    a.push_back(shared + 0.5f + 0.01f * normal(dice));
    b.push_back(shared);
  }
  const PairedDifference d = paired_difference(block_means(a), block_means(b), 4000);
  EXPECT_NEAR(d.difference, 0.5, 0.001);
  EXPECT_LT(d.standard_error, 0.001);
  EXPECT_GT(standard_error(block_means(a), 4000), 0.1);
}

}  // namespace
}  // namespace kv2
