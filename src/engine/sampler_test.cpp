// SPDX-License-Identifier: Apache-2.0
// Sampler: frequencies against the exact distribution of each setting, computed here by sorting everything.
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace kv2 {
namespace {

std::vector<float> random_logits(int n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> noise(-3.0f, 2.0f);
  std::vector<float> out(n);
  for (float& x : out) x = noise(random);
  return out;
}

/// The obvious way: softmax, sort, cut by k, by mass, by share of the best.
std::vector<double> expected_probabilities(const std::vector<float>& logits, const SamplingParams& p) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  if (p.top_k > 0) order.resize(std::min<size_t>(order.size(), p.top_k));
  std::vector<double> out(logits.size(), 0);
  double total = 0;
  for (int i : order) total += out[i] = std::exp((double{logits[i]} - logits[order[0]]) / p.temperature);
  double mass = 0;
  size_t kept = 0;
  while (kept < order.size() && mass < p.top_p * total) mass += out[order[kept++]];
  for (size_t i = 0; i < order.size(); i++)
    if (i >= kept || out[order[i]] < p.min_p) out[order[i]] = 0;
  const double sum = std::accumulate(out.begin(), out.end(), 0.0);
  for (double& x : out) x /= sum;
  return out;
}

TEST(Sampler, FrequenciesAreThoseOfTheDistribution) {
  const auto logits = random_logits(301, 7);
  for (const SamplingParams& p :
       {SamplingParams{.temperature = 1},
        {.temperature = 0.5f},
        {.temperature = 1.5f, .top_k = 20},
        {.temperature = 1, .top_p = 0.8f},
        {.temperature = 1, .min_p = 0.1f},
        {.temperature = 1.2f, .top_k = 50, .top_p = 0.9f, .min_p = 0.02f, .seed = 9}}) {
    const auto expected = expected_probabilities(logits, p);
    Sampler sampler(p);
    constexpr int kDraws = 40000;
    std::vector<int> counts(logits.size());
    for (int i = 0; i < kDraws; i++) counts[sampler.pick(logits)]++;
    for (size_t i = 0; i < logits.size(); i++) {
      if (expected[i] == 0) {
        EXPECT_EQ(counts[i], 0) << "token " << i << " was cut";
        continue;
      }
      const double sigma = std::sqrt(expected[i] * (1 - expected[i]) / kDraws);  // 5.5 sigma, 6 × 301 bins
      EXPECT_NEAR(counts[i] / double{kDraws}, expected[i], 5.5 * sigma + 2.0 / kDraws) << "token " << i;
    }
  }
}

TEST(Sampler, GreedyTakesTheFirstOfTheBestAndNeverNaN) {
  Sampler greedy({});
  EXPECT_EQ(greedy.pick(std::vector<float>{1, NAN, 3, 3, -INFINITY}), 2);
  EXPECT_EQ(greedy.pick(std::vector<float>{NAN, -INFINITY, -1e30f}), 2);
  EXPECT_THROW(greedy.pick(std::vector<float>{NAN, -INFINITY}), Error);
  Sampler sampling({.temperature = 1});
  for (int i = 0; i < 200; i++) EXPECT_EQ(sampling.pick(std::vector<float>{NAN, 5, -INFINITY}), 1);
  EXPECT_THROW(sampling.pick(std::vector<float>{NAN, -INFINITY}), Error);
  EXPECT_EQ(Sampler({.temperature = 1e-38f}).pick(std::vector<float>{1, 30, 29}), 1)
      << "overflows to infinity";
}

TEST(Sampler, TopKOneIsGreedyWithTies) {
  Sampler sampler({.temperature = 5, .top_k = 1});
  for (int i = 0; i < 50; i++) EXPECT_EQ(sampler.pick(std::vector<float>{1, 4, 4, 2}), 1);
}

TEST(Sampler, ASeedIsASequenceOfItsOwn) {
  const auto logits = random_logits(1000, 3);
  const auto draw = [&](uint64_t seed) {
    Sampler s({.temperature = 1, .seed = seed});
    std::vector<int32_t> out;
    for (int i = 0; i < 50; i++) out.push_back(s.pick(logits));
    return out;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
  EXPECT_NE(draw(0), draw(1));
}

TEST(SamplingParams, RefusesValuesOutOfRange) {
  EXPECT_THROW(SamplingParams{.temperature = -1}.validate(), Error);
  EXPECT_THROW(SamplingParams{.temperature = NAN}.validate(), Error);
  EXPECT_THROW(SamplingParams{.top_k = -1}.validate(), Error);
  for (const float p : {0.0f, -0.5f, 1.5f, NAN}) EXPECT_THROW(SamplingParams{.top_p = p}.validate(), Error);
  for (const float p : {1.0f, -0.1f, NAN}) EXPECT_THROW(SamplingParams{.min_p = p}.validate(), Error);
  EXPECT_NO_THROW((SamplingParams{.temperature = 2, .top_k = 40, .top_p = 0.9f, .min_p = 0.05f}.validate()));
}

}  // namespace
}  // namespace kv2
