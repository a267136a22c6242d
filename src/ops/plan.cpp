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

}  // namespace kv2
