// SPDX-License-Identifier: Apache-2.0
// Attention over full and packed pages on the thread team. A query tile is a run of queries of one page with
// all query heads of one KV head; a run of keys is 16 pages at absolute positions. Every (tile, run) gives a
// partial, partials are merged in page order: results do not depend on tiles, tasks or threads.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/threads.h"
#include "cpu/scratch.h"
#include "ops/params.h"

namespace kv2::cpu {

struct QueryTile;

class Attention {
 public:
  Attention(ThreadTeam& team, HugePages huge_pages)
      : team_(team),
        workers_(team.size(), huge_pages),
        partials_(huge_pages),
        runs_left_(new std::atomic<int>[most_split_tiles()]) {}

  void attend(const AttendParams& p);

  /// Bytes that attend() allocates at most.
  static size_t scratch_bytes(int n_threads, const KvShape& shape);

 private:
  void attend_whole(const AttendParams& p, const std::vector<QueryTile>& tiles);
  void attend_split(const AttendParams& p, const std::vector<QueryTile>& tiles);
  void cut_segments(const AttendParams& p, const std::vector<QueryTile>& tiles, int first, int wave);
  /// With as many tiles a worker can have some of its own.
  size_t most_split_tiles() const { return 4 * static_cast<size_t>(team_.size()); }

  struct Segment {
    int tile, first, end;  // runs of a tile, [first, end)
    int cost;
  };

  ThreadTeam& team_;
  WorkerScratch workers_;
  AlignedBuffer partials_;
  std::vector<Segment> segments_;  // of the wave at hand
  std::atomic<size_t> next_segment_{0};
  std::unique_ptr<std::atomic<int>[]> runs_left_;  // of the wave's tiles
};

}  // namespace kv2::cpu
