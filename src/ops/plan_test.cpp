// SPDX-License-Identifier: Apache-2.0
// Tiles of random ragged batches: every row and head once, every page in the form that the rule gives it.
#include "ops/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "ops/cases/inputs.h"

namespace kv2 {
namespace {

using cases::Random;

std::vector<SequenceView> random_batch(Random& random, int64_t longest) {
  std::vector<SequenceView> batch;
  int row = 0;
  for (int i = 1 + random.below(6); i > 0; i--) {
    SequenceView s;
    s.first_row = row;
    s.n_rows = random.below(3) == 0 ? 1 : random.below(200);  // 0: a sequence that sits this step out
    s.first_pos = random.below(static_cast<int>(longest));
    if (random.below(3) == 0) s.full_until = s.first_pos + random.below(150) - 20;
    row += s.n_rows;
    batch.push_back(s);
  }
  return batch;
}

TEST(AttendTiles, TilesCoverEveryRowAndHeadOnceInOneForm) {
  Random random(1);
  for (int round = 0; round < 300; round++) {
    const std::vector<SequenceView> batch = random_batch(random, 5000);
    const int n_kv_heads = 1 + random.below(4), tile_queries = 1 + random.below(80);
    std::map<std::pair<int, int>, int64_t> position;  // (row, kv head) -> position
    for (const AttendTile& t : cut_tiles(batch, n_kv_heads, tile_queries)) {
      const SequenceView& s = batch[t.sequence];
      ASSERT_GT(t.n_queries, 0);
      ASSERT_LE(t.n_queries, tile_queries);
      for (int i = 0; i < t.n_queries; i++) {
        const int64_t pos = t.first_pos + i;
        ASSERT_EQ(pos / kPageTokens, t.query_page());
        ASSERT_EQ(pos < s.full_until, t.reads_full);
        ASSERT_EQ(pos - s.first_pos, t.first_row + i - s.first_row);
        ASSERT_TRUE(position.emplace(std::pair{t.first_row + i, t.kv_head}, pos).second);
      }
    }
    int rows = 0;
    for (const SequenceView& s : batch) rows += s.n_rows;
    ASSERT_EQ(position.size(), static_cast<size_t>(rows) * n_kv_heads);
  }
}

TEST(AttendTiles, PackedPagesAreTheRulesPackedPages) {
  for (int sink = 0; sink <= 3; sink++)
    for (int recent = 0; recent <= 5; recent++)
      for (int page = 0; page < 12; page++)
        for (const bool quantized : {true, false})
          for (const bool reads_full : {true, false}) {
            const Visibility rule{sink, recent, quantized};
            const AttendTile tile{0, 0, 0, 1, page * 64 + 5, reads_full};
            const PageRange packed = tile.packed_pages(rule);
            for (int j = 0; j <= page; j++)
              ASSERT_EQ(j >= packed.begin && j < packed.end, !reads_full && rule.packed(page, j))
                  << sink << "/" << recent << " query page " << page << " page " << j;
          }
}

}  // namespace
}  // namespace kv2
