// SPDX-License-Identifier: Apache-2.0
// PageTable: a copy that is brought up to date by take_changes() alone always equals the table.
#include "cache/page_table.h"

#include <gtest/gtest.h>

#include <random>

#include "kv2/error.h"

namespace kv2 {
namespace {

TEST(PageTable, ChangesBringACopyUpToDate) {
  constexpr int kPages = 13;
  PageTable table(kPages);
  std::array<std::vector<int32_t>, 2> copy, truth;
  for (auto& c : copy) c.assign(kPages, 12345);
  for (auto& t : truth) t.assign(kPages, -1);
  std::mt19937 random(2);
  for (int i = 0; i < 5000; i++) {
    if (random() % 50 == 0) {
      table.clear();
      for (auto& t : truth) t.assign(kPages, -1);
    }
    for (int n = random() % 4; n > 0; n--) {
      const auto f = random() % 2;
      const int page = random() % kPages, slot = static_cast<int>(random() % 100) - 1;
      table.set(kForms[f], page, slot);
      truth[f][page] = slot;
    }
    for (size_t f = 0; f < 2; f++) {
      const PageTable::Range r = table.take_changes(kForms[f]);
      for (int64_t j = r.first; j < r.last; j++) copy[f][j] = table.slots(kForms[f])[j];
      ASSERT_EQ(copy[f], truth[f]);
      ASSERT_EQ(table.take_changes(kForms[f]).size(), 0);
    }
  }
  EXPECT_THROW(table.slot(Form::Full, kPages), Error);
  EXPECT_THROW(table.set(Form::Packed, -1, 0), Error);
}

}  // namespace
}  // namespace kv2
