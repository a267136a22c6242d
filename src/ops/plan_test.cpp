// SPDX-License-Identifier: Apache-2.0
// The plan of attention on random ragged batches: everything is covered once, and what a query sees of it
// depends on its position alone.
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

TEST(AttendPlan, TilesCoverEveryRowAndHeadOnceInOneForm) {
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

TEST(AttendPlan, PackedPagesAreTheRulesPackedPages) {
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

/// Runs a plan with "(a+b)" for a merge and the run's pages for a partial. Merges of a wave run in reverse
/// order: the order among tiles is free.
std::map<int, std::string> execute(const std::vector<AttendTile>& tiles, const AttendPlan& plan) {
  std::vector<std::string> partials(plan.n_partials);
  std::map<int, std::string> written;
  for (const AttendWave& wave : plan.waves) {
    std::set<int> used;
    for (const AttendTask& task : wave.tasks) {
      EXPECT_TRUE(used.insert(task.partial).second) << "two tasks of a wave share a partial";
      EXPECT_EQ(written.count(task.tile), 0u) << "a task after its tile was written";
      partials.at(task.partial) = fmt::format("{}-{}", task.pages.begin, task.pages.end);
    }
    for (size_t i = wave.merges.size(); i-- > 0;) {
      const AttendMerge& m = wave.merges[i];
      for (int k = 0; k < m.n_partials; k++) {
        EXPECT_TRUE(used.count(m.first_partial + k)) << "a partial of another wave";
        partials.at(m.tile) = "(" + partials.at(m.tile) + "+" + partials.at(m.first_partial + k) + ")";
      }
      if (m.last) {
        EXPECT_TRUE(written.emplace(m.tile, partials.at(m.tile)).second);
      }
    }
  }
  EXPECT_EQ(written.size(), tiles.size());
  return written;
}

/// From the position alone: runs of `run_pages` pages at absolute boundaries, folded from the left.
std::string expected_merge(int64_t pos, int run_pages) {
  const int last = static_cast<int>(pos / kPageTokens);
  std::string total;
  for (int begin = 0; begin <= last; begin += run_pages) {
    const std::string run = fmt::format("{}-{}", begin, std::min(begin + run_pages, last + 1));
    total = begin == 0 ? run : "(" + total + "+" + run + ")";
  }
  return total;
}

TEST(AttendPlan, WhatAQueryReadsAndHowItIsMergedDependsOnItsPositionAlone) {
  Random random(2);
  for (int round = 0; round < 300; round++) {
    const std::vector<SequenceView> batch = random_batch(random, 20000);
    const int run_pages = 1 + random.below(20);
    const std::vector<AttendTile> tiles = cut_tiles(batch, 1 + random.below(3), 1 + random.below(80));
    const AttendPlan plan = split_tiles(tiles, run_pages, 1 + random.below(round % 2 ? 500 : 5));
    const std::map<int, std::string> written = execute(tiles, plan);
    for (const auto& [tile, merged] : written)
      ASSERT_EQ(merged, expected_merge(tiles[tile].first_pos, run_pages));
  }
}

TEST(AttendPlan, PartialsAreBoundedWhateverTheContext) {
  const SequenceView s{.first_row = 0, .n_rows = 3, .first_pos = int64_t{1} << 22};
  const std::vector<AttendTile> tiles = cut_tiles(std::span(&s, 1), 8, 64);
  ASSERT_EQ(tiles.size(), 8u);
  const AttendPlan plan = split_tiles(tiles, 16, 100);
  EXPECT_EQ(plan.n_partials, 108);
  EXPECT_GT(plan.waves.size(), 300u);  // 8 tiles of 4,097 runs
  for (const AttendWave& wave : plan.waves) EXPECT_LE(wave.tasks.size(), 108u);
  EXPECT_EQ(execute(tiles, plan).size(), 8u);
}

TEST(AttendPlan, NothingToDoIsAnEmptyPlan) {
  const SequenceView idle{.first_row = 0, .n_rows = 0, .first_pos = 100};
  EXPECT_TRUE(cut_tiles({}, 2, 16).empty());
  EXPECT_TRUE(cut_tiles(std::span(&idle, 1), 2, 16).empty());
  EXPECT_TRUE(split_tiles({}, 16, 4).waves.empty());
  EXPECT_EQ(split_tiles({}, 16, 4).n_partials, 0);
}

}  // namespace
}  // namespace kv2
