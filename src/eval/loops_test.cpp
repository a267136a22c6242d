// SPDX-License-Identifier: Apache-2.0
// Loops in constructed texts, and against a search that tries every run.
#include "eval/loops.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace kv2 {
namespace {

std::vector<int32_t> counting(int n, int from) {
  std::vector<int32_t> out;
  for (int i = 0; i < n; i++) out.push_back(from + i);
  return out;
}

std::vector<int32_t> repeated(const std::vector<int32_t>& piece, int n_tokens) {
  std::vector<int32_t> out;
  for (int i = 0; i < n_tokens; i++) out.push_back(piece[i % piece.size()]);
  return out;
}

std::vector<int32_t> operator+(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(Loops, AreFoundWithTheirPeriod) {
  EXPECT_EQ(longest_loop({}), Loop{});
  EXPECT_EQ(longest_loop(counting(500, 0)), Loop{});
  EXPECT_EQ(longest_loop(repeated({7}, 9)), (Loop{0, 9, 1}));
  EXPECT_EQ(longest_loop(repeated({1, 2, 3}, 5)), Loop{}) << "less than two periods";
  EXPECT_EQ(longest_loop(repeated({1, 2, 3}, 6)), (Loop{0, 6, 3}));
  const auto text = counting(10, 100) + repeated({1, 2, 3, 4}, 11) + counting(5, 200) + repeated({9}, 8);
  EXPECT_EQ(longest_loop(text), (Loop{10, 11, 4}));
  EXPECT_EQ(loop_at_end(text), (Loop{26, 8, 1}));
  EXPECT_EQ(loop_at_end(text + counting(1, 300)), Loop{});
  EXPECT_EQ(longest_loop(repeated(counting(64, 0), 130)).period, 64);
  EXPECT_EQ(longest_loop(repeated(counting(65, 0), 400)), Loop{}) << "a period past the longest";
}

TEST(Loops, AgreeWithASearchOfEveryRun) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; round++) {
    std::vector<int32_t> text(1 + random() % 40);
    for (int32_t& t : text) t = static_cast<int32_t>(random() % 2);
    Loop best, best_at_end;
    const auto n = static_cast<int64_t>(text.size());
    for (int64_t period = 1; period <= n / 2; period++)
      for (int64_t begin = 0; begin < n; begin++)
        for (int64_t end = begin + 2 * period; end <= n; end++) {
          bool loop = true;
          for (int64_t i = begin + period; i < end; i++) loop &= text[i] == text[i - period];
          if (!loop) continue;
          if (end - begin > best.length) best = {begin, end - begin, period};
          if (end == n && end - begin > best_at_end.length) best_at_end = {begin, end - begin, period};
        }
    EXPECT_EQ(longest_loop(text), best) << round;
    EXPECT_EQ(loop_at_end(text), best_at_end) << round;
  }
}

TEST(Loops, CollapsedIsALongLoopAtTheEnd) {
  const auto start = counting(100, 1000);
  EXPECT_TRUE(collapsed(start + repeated({1, 2, 3}, 256)));
  EXPECT_FALSE(collapsed(start + repeated({1, 2, 3}, 255)));
  EXPECT_FALSE(collapsed(start + repeated({1, 2, 3}, 256) + counting(1, 0)));
  EXPECT_TRUE(collapsed(start + repeated(counting(64, 0), 256)));
  EXPECT_FALSE(collapsed(start + repeated(counting(65, 0), 600)));
  EXPECT_FALSE(collapsed({}));
  EXPECT_TRUE(stuck(start + repeated({1, 2, 3}, 256)));
  EXPECT_TRUE(stuck(repeated(counting(64, 0), 256))) << "every collapsed text is stuck";
  EXPECT_FALSE(stuck(repeated(counting(65, 0), 600)));
  EXPECT_FALSE(stuck(repeated({1, 2, 3}, 255)));
  EXPECT_FALSE(stuck(counting(300, 0)));
  std::vector<int32_t> mistakes = repeated({1, 2, 3}, 300);
  for (size_t i = 20; i < 300; i = i * 5 / 4) mistakes[i] = 9;  // no loop lasts
  EXPECT_FALSE(collapsed(mistakes));
  EXPECT_TRUE(stuck(mistakes));
}

TEST(Loops, DistinctRatioCountsRuns) {
  EXPECT_EQ(distinct_ratio(counting(50, 0), 4), 1);
  EXPECT_EQ(distinct_ratio(std::vector<int32_t>{1, 2, 1, 2, 1}, 2), 0.5);
  EXPECT_EQ(distinct_ratio(repeated({5}, 11), 2), 0.1);
  EXPECT_EQ(distinct_ratio(repeated({5}, 3), 4), 1) << "too short for one run";
  std::mt19937 random(3);
  std::vector<int32_t> text(300);
  for (int32_t& t : text) t = static_cast<int32_t>(random() % 3);
  std::set<std::vector<int32_t>> runs;
  for (size_t i = 0; i + 4 <= text.size(); i++) runs.insert({text.begin() + i, text.begin() + i + 4});
  EXPECT_EQ(distinct_ratio(text, 4), static_cast<double>(runs.size()) / 297);
}

}  // namespace
}  // namespace kv2
