// SPDX-License-Identifier: Apache-2.0
// The tables of `feedback` against the metric they were made from, through what the coder does with them.
#include "quant/feedback/factors.h"

#include <gtest/gtest.h>

#include <limits>

#include "kv2/error.h"
#include "quant/feedback/test_metric.h"

namespace kv2 {
namespace {

using testing::TestMetric;

std::vector<double> sweep(const FeedbackTables& tables, std::vector<double> t) {
  const size_t d = t.size();
  for (size_t j = 0; j < d; ++j)
    for (size_t i = 0; i < j; ++i) t[j] -= t[i] * tables.f[i * d + j];
  return t;
}

TEST(FeedbackFactors, TheSweepDiagonalisesTheMetric) {
  std::mt19937 rng(3);
  std::normal_distribution<double> normal;
  for (const int d : {64, 80, 128}) {
    for (const bool rotated : {false, true}) {
      const TestMetric m(d, d, rng, 6, rotated);
      for (int repeat = 0; repeat < 20; ++repeat) {
        std::vector<double> z(d);
        for (double& x : z) x = 0.5 + normal(rng);
        const std::vector<double> t = sweep(m.factors.tables(), z);
        double sum = 0;
        for (int j = 0; j < d; ++j) sum += m.factors.weight[j] * t[j] * t[j];
        ASSERT_NEAR(sum, m.error(z), 2e-5 * m.error(z)) << "d " << d << " rotated " << rotated;
      }
    }
  }
}

TEST(FeedbackFactors, ShapeOfTheTables) {
  std::mt19937 rng(4);
  const int d = 64, group = 16;
  const TestMetric m(d, group, rng, 4, true);
  const FeedbackTables t = m.factors.tables();
  for (int i = 0; i < d; ++i) {
    EXPECT_EQ(t.f[i * d + i], 1.0f);
    EXPECT_GT(t.weight[i], 0);
    for (int j = 0; j < i; ++j) EXPECT_EQ(t.f[i * d + j], 0.0f);
  }
  for (int g = 0; g < d / group; ++g) {
    std::vector<double> ones(d, 0);
    std::fill_n(ones.begin() + g * group, group, 1.0);
    const std::vector<double> want = sweep(t, ones);
    for (int j = 0; j < d; ++j) EXPECT_NEAR(t.ones[g * d + j], want[j], 1e-5);
  }
}

// Every head has its own metric and its own decode matrix, and the tables of a head are found where they are.
TEST(FeedbackFactors, HeadsAreIndependent) {
  std::mt19937 rng(5);
  const int d = 32, group = 16;
  std::vector<float> both;
  const TestMetric a(d, group, rng, 5, true), b(d, group, rng, 1, true);
  both.insert(both.end(), a.metric.begin(), a.metric.end());
  both.insert(both.end(), b.metric.begin(), b.metric.end());
  const FeedbackFactors f = fit_feedback(both, hadamard_transform(2, d), group, TestMetric::kDamp);
  const FeedbackTables second = f.tables().of_head(1, d, group);
  for (int i = 0; i < d * d; ++i) ASSERT_EQ(second.f[i], b.factors.f[i]);
  for (int i = 0; i < d; ++i) ASSERT_EQ(second.weight[i], b.factors.weight[i]);
  for (int i = 0; i < 2 * d; ++i) ASSERT_EQ(second.ones[i], b.factors.ones[i]);
}

TEST(FeedbackFactors, DegenerateMetrics) {
  const int d = 16;
  const Transform t = identity_transform(1, d);
  std::vector<float> metric(d * d, 0.0f);
  FeedbackFactors f = fit_feedback(metric, t, d, 0.02);  // an unused head: plain squared error
  for (int i = 0; i < d; ++i) EXPECT_EQ(f.weight[i], 1.0f);
  metric[5 * d + 5] = 7;  // rank one: the damping keeps everything finite
  f = fit_feedback(metric, t, d, 0.02);
  for (const float x : f.f) EXPECT_TRUE(std::isfinite(x));
  EXPECT_NEAR(f.weight[5] / f.weight[4], (d + 0.02) / 0.02, 1);
  metric[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(fit_feedback(metric, t, d, 0.02), Error);
  metric[3] = 0;
  EXPECT_THROW(fit_feedback(metric, t, d, 0), Error);
  EXPECT_THROW(fit_feedback(metric, t, 5, 0.02), Error);
}

}  // namespace
}  // namespace kv2
