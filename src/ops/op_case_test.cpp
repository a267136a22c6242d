// SPDX-License-Identifier: Apache-2.0
// The checker can fail: what compare_outputs must notice, and that wrong backends are caught by the cases.
#include "ops/op_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kv2/error.h"
#include "ops/reference/reference.h"

namespace kv2 {
namespace {

OpOutput rows_of(std::vector<float> values) {
  return {.row_width = 2, .values = std::move(values), .bytes = {}};
}

TEST(CompareOutputs, IsRelativeToEachRow) {
  const OpOutput want = rows_of({3, 4, 3e-6f, 4e-6f});
  double worst = 0;
  EXPECT_EQ(compare_outputs(want, want, 1e-9, &worst), "");
  EXPECT_EQ(worst, 0);
  EXPECT_EQ(compare_outputs(rows_of({3.00001f, 4, 3e-6f, 4e-6f}), want, 1e-5, &worst), "");
  EXPECT_NEAR(worst, 0.2, 0.01);
  EXPECT_NE(compare_outputs(rows_of({3, 4, 3.1e-6f, 4e-6f}), want, 1e-5, nullptr),
            "");  // small row, large error
}

TEST(CompareOutputs, SeesNanInfinityBitsAndBytes) {
  const OpOutput want = rows_of({1, 2, NAN, INFINITY});
  EXPECT_EQ(compare_outputs(want, want, 1e-5, nullptr), "");
  EXPECT_EQ(compare_outputs(want, want, 0, nullptr), "");
  EXPECT_NE(compare_outputs(rows_of({NAN, 2, NAN, INFINITY}), want, 1e-5, nullptr), "");
  EXPECT_NE(compare_outputs(rows_of({1, 2, 3, INFINITY}), want, 1e-5, nullptr), "");
  EXPECT_NE(compare_outputs(rows_of({1, 2, NAN, -INFINITY}), want, 1e-5, nullptr), "");
  EXPECT_NE(compare_outputs(rows_of({1, 2}), want, 1e-5, nullptr), "");
  EXPECT_NE(compare_outputs(rows_of({0.0f, 1}), rows_of({-0.0f, 1}), 0, nullptr), "");
  EXPECT_NE(compare_outputs(rows_of({1e-9f, 0}), rows_of({0, 0}), 1e-5, nullptr), "");
  OpOutput bytes = want;
  bytes.bytes = {std::byte{1}};
  EXPECT_NE(compare_outputs(bytes, want, 1e-5, nullptr), "");
}

TEST(OpCases, AreNamedOnceAndCounted) {
  for (const std::string& op : op_names()) {
    std::set<std::string> names;
    for (const OpCase& c : op_cases(op)) {
      EXPECT_EQ(c.op, op);
      EXPECT_TRUE(names.insert(c.name).second) << op << ": two cases are called " << c.name;
      EXPECT_GT(c.bytes, 0) << c.name;
    }
    EXPECT_GE(names.size(), 10u) << op;
  }
  EXPECT_THROW(op_cases("no such op"), Error);
}

}  // namespace
}  // namespace kv2
