// SPDX-License-Identifier: Apache-2.0
#include "ops/plan.h"

#include <algorithm>

#include "base/check.h"

namespace kv2 {

PageRange AttendTile::packed_pages(const Visibility& rule) const {
  if (reads_full || !rule.quantized) return {};
  const int end = query_page() - rule.recent_pages;
  return end > rule.sink_pages ? PageRange{rule.sink_pages, end} : PageRange{};
}

std::vector<AttendTile> cut_tiles(std::span<const SequenceView> sequences, int n_kv_heads, int tile_queries) {
  KV2_CHECK(n_kv_heads > 0 && tile_queries > 0);
  std::vector<AttendTile> tiles;
  for (size_t i = 0; i < sequences.size(); i++) {
    const SequenceView& s = sequences[i];
    for (int64_t done = 0; done < s.n_rows;) {
      const int64_t pos = s.first_pos + done;
      const bool reads_full = pos < s.full_until;
      int64_t n = std::min<int64_t>({tile_queries, s.n_rows - done, kPageTokens - pos % kPageTokens});
      if (reads_full) n = std::min(n, s.full_until - pos);
      for (int h = 0; h < n_kv_heads; h++)
        tiles.push_back({static_cast<int>(i), h, static_cast<int>(s.first_row + done), static_cast<int>(n),
                         pos, reads_full});
      done += n;
    }
  }
  return tiles;
}

AttendPlan split_tiles(std::span<const AttendTile> tiles, int run_pages, int max_run_partials) {
  KV2_CHECK(run_pages > 0 && max_run_partials > 0);
  const int n_tiles = static_cast<int>(tiles.size());
  AttendPlan plan;
  int used = 0;  // run partials of the open wave
  for (int t = 0; t < n_tiles; t++) {
    const int n_runs = tiles[t].n_runs(run_pages);
    for (int run = 0; run < n_runs; run++) {
      if (plan.waves.empty() || (run > 0 && used == max_run_partials)) {
        plan.waves.emplace_back();
        used = 0;
      }
      AttendWave& wave = plan.waves.back();
      const PageRange pages{run * run_pages, std::min((run + 1) * run_pages, tiles[t].query_page() + 1)};
      const int partial = run == 0 ? t : n_tiles + used;
      wave.tasks.push_back({t, run, pages, partial});
      if (wave.merges.empty() || wave.merges.back().tile != t)
        wave.merges.push_back({t, n_tiles + used, 0, false});
      if (run > 0) {
        wave.merges.back().n_partials++;
        used++;
      }
      wave.merges.back().last = run + 1 == n_runs;
      plan.n_partials = std::max(plan.n_partials, n_tiles + used);
    }
  }
  return plan;
}

}  // namespace kv2
