// SPDX-License-Identifier: Apache-2.0
// Queries cut into tiles that read every page in the same form. Invariant: what a query reads, and in which
// form, depends on its position alone, not on its batch or chunk. How a backend cuts a tile's pages into runs
// is its own (cpu/attend.cpp, cuda/attend_plan.h).
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
  /// The pages that its queries read packed; all others of [0, query_page] are read in full.
  PageRange packed_pages(const Visibility& rule) const;
};

/// Tiles of at most tile_queries queries. A tile's arithmetic per query must not depend on the rest of the
/// tile.
std::vector<AttendTile> cut_tiles(std::span<const SequenceView> sequences, int n_kv_heads, int tile_queries);

}  // namespace kv2
