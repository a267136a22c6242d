// SPDX-License-Identifier: Apache-2.0
// Divergences and quantiles against long double and by hand.
#include "eval/compare_logits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kv2/error.h"

namespace kv2 {
namespace {

std::vector<float> random_logits(int n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(3, 4);
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

TEST(CompareLogits, EqualsLongDouble) {
  for (const int n : {1, 2, 511, 512, 513, 3001}) {
    const std::vector<float> p = random_logits(n, n), q = random_logits(n, n + 1);
    long double zp = 0, zq = 0, kl = 0;
    for (int i = 0; i < n; i++) zp += std::exp((long double)p[i]), zq += std::exp((long double)q[i]);
    for (int i = 0; i < n; i++)
      kl += std::exp((long double)p[i]) / zp * ((p[i] - std::log(zp)) - (q[i] - std::log(zq)));
    const LogitRow a = summarize(p), b = summarize(q);
    EXPECT_NEAR(a.log_z, double(std::log(zp)), 1e-12);
    EXPECT_EQ(a.arg_max, std::max_element(p.begin(), p.end()) - p.begin());
    EXPECT_NEAR(kl_divergence(p, a, q, b), double(kl), 1e-11 * (1 + double(kl)));
    EXPECT_NEAR(negative_log_likelihood(p, a, n / 2), double(std::log(zp) - p[n / 2]), 1e-12);
  }
}

TEST(CompareLogits, EqualLogitsHaveNoDivergence) {
  const std::vector<float> p = random_logits(1003, 9), q = p;
  EXPECT_EQ(kl_divergence(p, summarize(p), q, summarize(q)), 0.0);
}

TEST(CompareLogits, LargeLogitsAndAFloorOfZero) {
  std::vector<float> p{1000, 999, -3e30f}, q{5, 4, -1e38f};
  EXPECT_NEAR(summarize(p).log_z, 1000 + std::log1p(std::exp(-1.0)), 1e-12);
  EXPECT_NEAR(kl_divergence(p, summarize(p), q, summarize(q)), 0, 1e-12);
  EXPECT_GE(kl_divergence(p, summarize(p), q, summarize(q)), 0.0);
}

TEST(CompareLogits, NanIsADamagedModel) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::vector<float> p{1, bad, 2};
    try {
      summarize(p);
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::BadFile) << e.what();
    }
  }
}

TEST(CompareLogits, QuantilesInterpolate) {
  const std::vector<float> x{1, 2, 4, 8};
  EXPECT_EQ(quantile(x, 0), 1);
  EXPECT_EQ(quantile(x, 1), 8);
  EXPECT_EQ(quantile(x, 0.5), 3);
  EXPECT_NEAR(quantile(x, 0.99), 4 + 0.97 * 4, 1e-12);
  EXPECT_EQ(quantile(std::vector<float>{7}, 0.99), 7);
}

}  // namespace
}  // namespace kv2
