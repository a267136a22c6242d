// SPDX-License-Identifier: Apache-2.0
// plan_attend, which needs no GPU: whoever computes it, every query and head is in one tile, with its own
// pages.
#include "cuda/attend_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace kv2::cuda {
namespace {

constexpr int kMultiprocessors = 132;

struct Batch {
  std::vector<std::vector<int32_t>> tables;
  std::vector<SequenceView> sequences;
  int n_rows = 0;

  void add(int64_t first_pos, int rows, int64_t full_until = 0) {
    tables.emplace_back(1);
    sequences.push_back({n_rows, rows, first_pos, full_until, tables.back().data(), nullptr});
    n_rows += rows;
  }
};

void check_tiles(const Batch& batch, const KvShape& shape, const Visibility& rule, const AttendLimits& limits,
                 const AttendPlan& plan) {
  ASSERT_EQ(plan.tiles.size(), static_cast<size_t>(plan.n_tiles + plan.n_prefill_blocks * kPrefillTiles));
  std::map<std::pair<int, int>, int> seen;  // (row, head of the KV group)
  for (int i = 0; i < static_cast<int>(plan.tiles.size()); i++) {
    const AttendTile& t = plan.tiles[i];
    const bool prefill = i >= plan.n_tiles;
    EXPECT_LE(t.n_queries * t.n_heads, prefill ? prefill_pairs(shape.head_dim) : limits.pairs);
    if (prefill) {
      const AttendTile& first = plan.tiles[i - (i - plan.n_tiles) % kPrefillTiles];
      EXPECT_GT(first.n_queries, 0);
      EXPECT_EQ(t.full_pages, first.full_pages);
      EXPECT_EQ(t.query_page, first.query_page);
      EXPECT_EQ(t.packed_begin, first.packed_begin);
      EXPECT_EQ(t.packed_end, first.packed_end);
    }
    for (int q = 0; q < t.n_queries; q++) {
      const int row = t.first_row + q;
      for (int h = 0; h < t.n_heads; h++) seen[{row, t.first_head + h}]++;
      const auto s = std::find_if(batch.sequences.begin(), batch.sequences.end(), [&](const SequenceView& v) {
        return row >= v.first_row && row < v.first_row + v.n_rows;
      });
      ASSERT_NE(s, batch.sequences.end());
      const int64_t pos = s->first_pos + row - s->first_row;
      EXPECT_EQ(t.full_pages, s->full_pages);
      EXPECT_EQ(t.query_page, pos / kPageTokens);
      EXPECT_EQ(t.first_in_page + q, pos % kPageTokens);
      for (int page = 0; page <= t.query_page; page++)
        EXPECT_EQ(page >= t.packed_begin && page < t.packed_end,
                  pos >= s->full_until && rule.packed(t.query_page, page));
    }
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(batch.n_rows) * shape.q_per_kv());
  for (const auto& [key, n] : seen) EXPECT_EQ(n, 1) << "row " << key.first << " head " << key.second;
}

/// Every run of every tile and KV head is in one segment of one block, in order; the cost of the largest
/// block, in pages.
int64_t check_segments(const KvShape& shape, const AttendPlan& plan) {
  std::map<std::pair<int, int>, int> seen;  // (owner, run)
  std::vector<bool> used(plan.segments.size());
  int64_t largest = 0;
  bool cut = false;
  EXPECT_EQ(plan.n_blocks + (plan.n_blocks > 0 ? static_cast<size_t>(plan.n_tiles) * shape.n_kv_heads : 0),
            plan.segments.size());
  for (int block = 0; block < plan.n_blocks; block++) {
    int64_t pages = 0;
    for (int at = block; at >= 0;) {
      const AttendSegment& s = plan.segments[at];
      if (s.end_run == 0) break;
      EXPECT_FALSE(used[at]) << "segment " << at;
      used[at] = true;
      EXPECT_EQ(s.owner % shape.n_kv_heads, s.kv_head);
      const AttendTile& tile = plan.tiles[s.owner / shape.n_kv_heads];
      EXPECT_EQ(s.tile.first_row, tile.first_row);
      EXPECT_EQ(s.tile.query_page, tile.query_page);
      const Runs runs{tile.query_page};
      EXPECT_LE(runs.count(), plan.max_runs);
      EXPECT_LE(s.end_run, runs.count());
      cut = cut || s.end_run - s.first_run < runs.count();
      for (int run = s.first_run; run < s.end_run; run++) {
        seen[{s.owner, run}]++;
        pages += runs.end(run) - runs.begin(run);
      }
      at = s.next;
      if (at >= 0) {
        EXPECT_GE(at, plan.n_blocks) << "where another block begins";
        EXPECT_LT(at, static_cast<int>(plan.segments.size()));
        if (at < plan.n_blocks || at >= static_cast<int>(plan.segments.size())) break;
      }
    }
    largest = std::max(largest, pages);
  }
  EXPECT_EQ(cut, plan.merges);
  size_t n_runs = 0;
  for (int i = 0; i < plan.n_tiles; i++)
    n_runs += static_cast<size_t>(Runs{plan.tiles[i].query_page}.count()) * shape.n_kv_heads;
  EXPECT_EQ(seen.size(), n_runs);
  for (const auto& [key, n] : seen) EXPECT_EQ(n, 1) << "owner " << key.first << " run " << key.second;
  return largest;
}

AttendPlan plan(const Batch& batch, const KvShape& shape, const Visibility& rule, PrefillKernel kernel,
                int n_multiprocessors) {
  const AttendLimits limits{attend_pairs(shape, false, 0), n_multiprocessors, kernel};
  AttendPlan made = plan_attend(batch.sequences, shape, rule, limits);
  check_tiles(batch, shape, rule, limits, made);
  check_segments(shape, made);
  return made;
}

TEST(CudaAttendPlan, RunsCoverThePagesUpToTheQueries) {
  for (int query_page = 0; query_page < 2200; query_page++) {
    const Runs runs{query_page};
    int next = 0;
    for (int run = 0; run < runs.count(); run++) {
      ASSERT_EQ(runs.begin(run), next) << "run " << run << " of page " << query_page;
      next = runs.end(run);
      ASSERT_GT(next, runs.begin(run));
      const bool is_short = query_page < kLongContext && next <= kShortRuns;
      ASSERT_LE(next - runs.begin(run), is_short ? kMinRunPages : kMaxRunPages);
      for (int page = runs.begin(run); page < next; page++) ASSERT_EQ(runs.of(page), run);
    }
    ASSERT_EQ(next, query_page + 1);
    ASSERT_LE(next - runs.begin(runs.count() - 1), kMinRunPages) << "the last run is short";
  }
}

TEST(CudaAttendPlan, BlocksHaveAboutTheSameNumberOfPages) {
  const KvShape shape{1, 32, 8, 128};
  for (const auto& [n_sequences, tokens] : {std::pair{1, 131072}, {8, 32768}, {53, 32768}, {28, 100032}}) {
    Batch batch;
    for (int i = 0; i < n_sequences; i++) batch.add(tokens - 1, 1);
    const AttendLimits limits{4, kMultiprocessors, PrefillKernel::Hopper};
    const AttendPlan made = plan_attend(batch.sequences, shape, {}, limits);
    const int64_t largest = check_segments(shape, made);
    const double mean = 8.0 * n_sequences * tokens / 64 / (2 * kMultiprocessors);
    EXPECT_LE(largest, 1.1 * mean + kMaxRunPages) << n_sequences << " of " << tokens;
    EXPECT_LE(made.n_blocks, 2 * kMultiprocessors);
  }
  Batch many;  // more tiles than can be cut with profit
  for (int i = 0; i < 700; i++) many.add(1000, 1);
  EXPECT_FALSE(plan(many, shape, {}, PrefillKernel::None, kMultiprocessors).merges);
}

auto fields(const AttendTile& t) {
  return std::tuple(t.first_row, t.n_queries, t.first_head, t.n_heads, t.query_page, t.first_in_page,
                    t.packed_begin, t.packed_end, t.full_pages, t.packed_pages);
}

/// Every tile and segment is what a plan made anew has.
void expect_same(const AttendPlan& got, const AttendPlan& want) {
  ASSERT_EQ(got.tiles.size(), want.tiles.size());
  for (size_t i = 0; i < want.tiles.size(); i++) EXPECT_EQ(fields(got.tiles[i]), fields(want.tiles[i]));
  ASSERT_EQ(got.segments.size(), want.segments.size());
  for (size_t i = 0; i < want.segments.size(); i++) {
    const AttendSegment &g = got.segments[i], &w = want.segments[i];
    EXPECT_EQ(std::tie(g.owner, g.kv_head, g.first_run, g.end_run, g.next),
              std::tie(w.owner, w.kv_head, w.first_run, w.end_run, w.next));
    if (w.end_run > 0) {
      EXPECT_EQ(fields(g.tile), fields(w.tile)) << "segment " << i;
    }
  }
  EXPECT_EQ(std::tie(got.n_tiles, got.n_blocks, got.max_runs, got.merges, got.n_prefill_blocks),
            std::tie(want.n_tiles, want.n_blocks, want.max_runs, want.merges, want.n_prefill_blocks));
}

TEST(CudaAttendPlan, AStepsPlanGoesOnAsOneMadeAnew) {
  const KvShape shape{1, 32, 8, 128};
  const Visibility rule;
  const AttendLimits limits{4, kMultiprocessors, PrefillKernel::Hopper};
  Batch batch;
  batch.add(64 * 520 + 60, 1);
  batch.add(3, 1, 6);  // `exact` ends on the way
  batch.add(64 * 2000, 1);
  AttendPlanner planner;
  uint64_t version = 0;
  for (int step = 0; step < 80; step++) {
    const AttendPlan& plan = planner.plan(batch.sequences, shape, rule, limits);
    EXPECT_NE(plan.version, version) << "positions are other ones";
    version = plan.version;
    expect_same(plan, plan_attend(batch.sequences, shape, rule, limits));
    EXPECT_EQ(planner.plan(batch.sequences, shape, rule, limits).version, version) << "the next layer";
    for (SequenceView& s : batch.sequences) s.first_pos++;
    if (step == 30) std::swap(batch.sequences[0].full_pages, batch.sequences[2].full_pages);
  }
  // rows that are not those of the batch in order, and more than one of a sequence
  std::swap(batch.sequences[0].first_row, batch.sequences[1].first_row);
  for (int step = 0; step < 2; step++, batch.sequences[2].first_pos++)
    expect_same(planner.plan(batch.sequences, shape, rule, limits),
                plan_attend(batch.sequences, shape, rule, limits));
  batch.sequences[2].n_rows = 2;
  for (int step = 0; step < 2; step++, batch.sequences[2].first_pos++)
    expect_same(planner.plan(batch.sequences, shape, rule, limits),
                plan_attend(batch.sequences, shape, rule, limits));
}

TEST(CudaAttendPlan, EveryQueryAndHeadIsInOneTileWithItsPages) {
  for (const int q_per_kv : {1, 3, 4, 7, 16, 20})
    for (const int head_dim : {64, 128, 256})
      for (const int n_multiprocessors : {1, kMultiprocessors}) {
        Batch batch;
        batch.add(700, 1);
        batch.add(100, 1000);
        batch.add(0, 65, 40);  // `exact` ends inside a page
        batch.add(5, 0);
        batch.add(63, 2);
        const KvShape shape{1, 2 * q_per_kv, 2, head_dim};
        for (const PrefillKernel kernel : {PrefillKernel::None, PrefillKernel::Packed})
          for (const bool quantized : {true, false})
            plan(batch, shape, {1, 4, quantized}, kernel, n_multiprocessors);
      }
}

TEST(CudaAttendPlan, PagesOfManyQueriesGoToTheKernelForPromptsWhereTheyFillTheGpu) {
  const KvShape shape{1, 32, 8, 128};
  const Visibility rule;
  Batch chunk;
  chunk.add(8000, 1);
  chunk.add(30000, 2048);
  const AttendPlan many = plan(chunk, shape, rule, PrefillKernel::Hopper, kMultiprocessors);
  EXPECT_EQ(many.prefill_kernel, PrefillKernel::Hopper);
  EXPECT_EQ(many.n_prefill_blocks, 65);  // 31 whole pages of two blocks, and 16 and 48 queries at the ends
  // the single query stays, and so do no others
  EXPECT_EQ(many.n_tiles, 1);
  EXPECT_EQ(many.max_runs, 4);
  for (int i = many.n_tiles + kPrefillTiles; i < static_cast<int>(many.tiles.size()); i++)
    EXPECT_GE(many.tiles[i - kPrefillTiles].query_page, many.tiles[i].query_page) << "longest first";

  Batch few;
  few.add(30016, 64);  // 2 blocks for each of 8 KV heads would leave most of 132 multiprocessors idle
  EXPECT_EQ(plan(few, shape, rule, PrefillKernel::Hopper, kMultiprocessors).n_prefill_blocks, 0);
  EXPECT_EQ(plan(few, shape, rule, PrefillKernel::Hopper, 1).n_prefill_blocks, 2);
  EXPECT_EQ(plan(chunk, shape, rule, PrefillKernel::None, 1).n_prefill_blocks, 0);
}

TEST(CudaAttendPlan, WhereNothingIsPackedPromptsHaveTheKernelForFullPages) {
  const KvShape shape{1, 8, 2, 128};
  Batch batch;
  batch.add(0, 512);
  EXPECT_EQ(plan(batch, shape, {1, 4, false}, PrefillKernel::Hopper, 1).prefill_kernel, PrefillKernel::Full);
  EXPECT_EQ(plan(batch, shape, {1, 4, true}, PrefillKernel::Hopper, 1).prefill_kernel, PrefillKernel::Hopper);
}

}  // namespace
}  // namespace kv2::cuda
