// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <random>

namespace kv2 {
namespace {

std::vector<std::pair<int, int>> plan(std::vector<int64_t> pending, StepLimits limits) {
  std::vector<std::pair<int, int>> out;
  for (const Share& s : plan_step(pending, limits)) out.emplace_back(s.index, s.n_rows);
  return out;
}
using Plan = std::vector<std::pair<int, int>>;

TEST(Scheduler, DecodesFirstThenPromptsInOrder) {
  EXPECT_EQ(plan({300, 1, 50, 1}, {.max_rows = 128, .chunk_tokens = 100}), (Plan{{1, 1}, {3, 1}, {0, 100}}));
  EXPECT_EQ(plan({30, 1, 50}, {.max_rows = 128, .chunk_tokens = 100}), (Plan{{1, 1}, {0, 30}, {2, 50}}));
  EXPECT_EQ(plan({30, 1, 500}, {.max_rows = 128, .chunk_tokens = 100}), (Plan{{1, 1}, {0, 30}, {2, 70}}));
  EXPECT_EQ(plan({500, 1, 1}, {.max_rows = 10, .chunk_tokens = 100}), (Plan{{1, 1}, {2, 1}, {0, 8}}));
  EXPECT_EQ(plan({1, 1, 1}, {.max_rows = 2, .chunk_tokens = 1}), (Plan{{0, 1}, {1, 1}}));
  EXPECT_EQ(plan({}, {.max_rows = 8, .chunk_tokens = 8}), Plan{});
}

TEST(Scheduler, KeepsItsLimitsAndNeverStandsStill) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; round++) {
    std::vector<int64_t> pending(1 + random() % 8);
    for (int64_t& p : pending) p = random() % 3 == 0 ? 1 : 1 + random() % 900;
    const StepLimits limits{.max_rows = static_cast<int>(8 + random() % 300),
                            .chunk_tokens = static_cast<int>(1 + random() % 200)};
    std::vector<int64_t> rows(pending.size());
    int64_t all = 0, prompt = 0, whole = 0;
    for (const Share& s : plan_step(pending, limits)) {
      ASSERT_EQ(rows[s.index], 0) << "one share each";
      rows[s.index] = s.n_rows;
      all += s.n_rows;
      prompt += pending[s.index] > 1 ? s.n_rows : 0;
      ASSERT_LE(s.n_rows, pending[s.index]);
    }
    for (int64_t p : pending) whole += p;
    EXPECT_LE(all, limits.max_rows);
    EXPECT_LE(prompt, limits.chunk_tokens);
    EXPECT_GE(all, 1);
    for (size_t i = 0; i < pending.size(); i++) {
      if (pending[i] == 1) {
        EXPECT_EQ(rows[i], 1) << "rows are enough for every decode here";
      }
    }
    if (whole <= limits.max_rows && whole <= limits.chunk_tokens) {
      EXPECT_EQ(all, whole);
    }
  }
}

}  // namespace
}  // namespace kv2
