// SPDX-License-Identifier: Apache-2.0
#include "ops/arg_max.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace kv2 {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(ArgMax, IsTheFirstOfTheLargest) {
  const auto of = [](std::vector<float> x) { return arg_max(x); };
  EXPECT_EQ(of({}), -1);
  EXPECT_EQ(of({-3, -1, -2, -1}), 1);
  EXPECT_EQ(of({-0.0f, 0.0f}), 0);
  EXPECT_EQ(of({kNan, 1, INFINITY, kNan, INFINITY}), 2);
  EXPECT_EQ(of({-INFINITY, kNan}), -1);
  EXPECT_EQ(of({kNan, -3e38f}), 1);
}

}  // namespace
}  // namespace kv2
