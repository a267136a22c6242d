// SPDX-License-Identifier: Apache-2.0
// Who computes which part of an attention, decided on the host before any kernel runs. Queries are cut into
// tiles, a tile's keys into runs of pages; every (tile, run) is a task that leaves a partial softmax, and a
// tile's partials are merged in page order. Invariant: where runs begin and how they are merged depends on
// positions alone, so a query's bits do not depend on its batch, its chunk, the load or the number of
// workers. Only who does what does.
//
//   pages   0 ......... 15 | 16 ........ 31 | 32 .. P      run_pages = 16, boundaries at absolute pages
//           run 0            run 1            run 2
//   total = ((partial 0 ⊕ partial 1) ⊕ partial 2)          always from the left, across waves too
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/params.h"

namespace kv2 {

/// Pages [begin, end).
struct PageRange {
  int begin = 0, end = 0;
};

/// Consecutive queries of one sequence and one page, for one KV head and all its query heads. All queries of
/// a tile read a page in the same form: a tile crosses neither a page nor the sequence's full_until.
struct AttendTile {
  int sequence;  // index into the sequences
  int kv_head;
  int first_row;  // row of the batch
  int n_queries;
  int64_t first_pos;
  bool reads_full;  // PrefillPolicy::Exact: every page in full

  int query_page() const { return static_cast<int>(first_pos / kPageTokens); }
  int n_runs(int run_pages) const { return query_page() / run_pages + 1; }
  /// The pages that its queries read packed; all others of [0, query_page] are read in full.
  PageRange packed_pages(const Visibility& rule) const;
};

/// Tiles of at most tile_queries queries. A tile's arithmetic per query must not depend on the rest of the
/// tile.
std::vector<AttendTile> cut_tiles(std::span<const SequenceView> sequences, int n_kv_heads, int tile_queries);

/// One run of pages of one tile.
struct AttendTask {
  int tile, run;
  PageRange pages;
  int partial;  // where the result goes: run 0 straight to the tile's total
};

/// total of `tile` = total ⊕ first_partial ⊕ … ⊕ first_partial + n_partials - 1, then written out if `last`.
struct AttendMerge {
  int tile, first_partial, n_partials;
  bool last;
};

/// Tasks of a wave may run in any order and at once; then its merges, in any order of tiles; then the next
/// wave.
struct AttendWave {
  std::vector<AttendTask> tasks;
  std::vector<AttendMerge> merges;
};

/// Partial i < tiles.size() is the total of tile i, the others are reused by every wave.
struct AttendPlan {
  std::vector<AttendWave> waves;
  int n_partials = 0;  // at most tiles.size() + max_run_partials, whatever the context
};

/// max_run_partials >= 1 bounds the memory of runs that wait for their merge, and with it the tasks of a
/// wave.
AttendPlan split_tiles(std::span<const AttendTile> tiles, int run_pages, int max_run_partials);

}  // namespace kv2
