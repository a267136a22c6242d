// SPDX-License-Identifier: Apache-2.0
// Attention over full and packed pages on the thread team. A query tile is a run of queries of one page with
// all query heads of one KV head; a run of keys is 16 pages at absolute positions. Every (tile, run) gives a
// partial, partials are merged in page order: results do not depend on tiles, tasks or threads.
#pragma once

#include <vector>

#include "base/threads.h"
#include "cpu/scratch.h"
#include "ops/params.h"

namespace kv2::cpu {

struct QueryTile;

class Attention {
 public:
  explicit Attention(ThreadTeam& team) : team_(team), workers_(team.size()) {}

  void attend(const AttendParams& p);

  /// Bytes that attend() allocates at most.
  static size_t scratch_bytes(int n_threads, const KvShape& shape);

 private:
  void attend_whole(const AttendParams& p, const std::vector<QueryTile>& tiles);
  void attend_split(const AttendParams& p, const std::vector<QueryTile>& tiles);

  ThreadTeam& team_;
  WorkerScratch workers_;
  AlignedBuffer partials_;
};

}  // namespace kv2::cpu
