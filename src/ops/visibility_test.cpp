// SPDX-License-Identifier: Apache-2.0
// The rule of visibility: Visibility::packed against its definition in positions, and what the cache may rely
// on.
#include <gtest/gtest.h>

#include "ops/params.h"

namespace kv2 {
namespace {

/// From the definition: the history of a query is everything after the first sink·64 tokens and before the
/// recent·64 tokens that precede the query's own page.
bool packed_by_position(int sink_pages, int recent_pages, int64_t query, int64_t key) {
  const int64_t page_begin = query - query % 64;
  return key >= 64 * static_cast<int64_t>(sink_pages) &&
         key < page_begin - 64 * static_cast<int64_t>(recent_pages);
}

TEST(Visibility, IsAFunctionOfPositionsOnly) {
  for (int sink = 0; sink <= 3; sink++)
    for (int recent = 0; recent <= 9; recent++)
      for (int64_t query = 0; query < 64 * 15; query += query % 64 == 0 ? 1 : 21)
        for (int64_t key = 0; key <= query; key += key % 64 == 63 ? 1 : 21)
          ASSERT_EQ((Visibility{sink, recent, true}.packed(query / 64, key / 64)),
                    packed_by_position(sink, recent, query, key))
              << "sink " << sink << " recent " << recent << " query " << query << " key " << key;
}

TEST(Visibility, TheQuerysOwnPageIsNeverPacked) {
  for (int sink = 0; sink <= 2; sink++)
    for (int recent = 0; recent <= 2; recent++)
      for (int page = 0; page < 20; page++) EXPECT_FALSE((Visibility{sink, recent, true}.packed(page, page)));
}

// A page that was read packed once stays packed for every later query: demotion is final, its full form may
// go.
TEST(Visibility, PackedStaysPacked) {
  for (int sink = 0; sink <= 2; sink++)
    for (int recent = 0; recent <= 4; recent++)
      for (int page = 0; page < 12; page++)
        for (int query = page; query < 30; query++) {
          const Visibility rule{sink, recent, true};
          if (rule.packed(query, page)) {
            ASSERT_TRUE(rule.packed(query + 1, page));
          }
        }
}

TEST(Visibility, FirstPositionWithHistoryIsTheFirstThatReadsAPackedPage) {
  for (int sink = 0; sink <= 3; sink++) {
    for (int recent = 0; recent <= 5; recent++) {
      const Visibility rule{sink, recent, true};
      int64_t first = -1;
      for (int64_t pos = 0; first < 0; pos++)
        for (int page = 0; page <= pos / 64; page++)
          if (rule.packed(static_cast<int>(pos / 64), page)) first = pos;
      EXPECT_EQ(rule.first_position_with_history(), first) << sink << "/" << recent;
    }
  }
}

TEST(Visibility, ABf16CacheReadsEveryPageInFull) {
  const Visibility rule{1, 4, false};
  for (int query = 0; query < 40; query++)
    for (int page = 0; page <= query; page++) EXPECT_FALSE(rule.packed(query, page));
  EXPECT_EQ(rule.first_position_with_history(), INT64_MAX);
}

}  // namespace
}  // namespace kv2
