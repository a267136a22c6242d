// SPDX-License-Identifier: Apache-2.0
// Where the KV view of an op lies, as kernels see it: the pages of a layer, the sides of a packed page, the
// rows that are appended. Host only.
#pragma once

#include <vector>

#include "base/check.h"
#include "cuda/kernels.h"
#include "cuda/side_format.h"
#include "ops/backend.h"

namespace kv2::cuda {

inline std::vector<AppendRow> append_rows(std::span<const SequenceView> sequences) {
  std::vector<AppendRow> rows;
  for (const SequenceView& s : sequences) {
    KV2_CHECK(s.first_row == static_cast<int>(rows.size()) || s.n_rows == 0,
              "rows of a sequence out of order");
    for (int i = 0; i < s.n_rows; i++) rows.push_back({s.full_pages, s.first_pos + i});
  }
  return rows;
}

inline Pool full_pool(const KvView& kv, int layer) {
  return {kv.full + kv.layout.full_offset(layer, 0), kv.layout.full_page_bytes(),
          kv.layout.full_head_bytes()};
}

struct Sides {
  PackedSide k, v;
};

inline Sides sides_of(const KvView& kv, int layer) {
  const LayerLayout& part = kv.layout.layer(layer);
  return {packed_side(part.k, kv.layout.shape, part.k_offset()),
          packed_side(part.v, kv.layout.shape, part.v_offset())};
}

/// Of a layer in channel order: its whole part of a page, heads found by AttendArgs::channels.
inline Pool channels_pool(const KvView& kv, int layer) {
  return {kv.packed + kv.layout.layer(layer).offset, kv.layout.packed_page_bytes(), 0};
}

inline Pool packed_pool(const KvView& kv, int layer) {
  if (!kv.layout.packs()) return {};
  return {kv.packed + kv.layout.packed_offset(layer, 0), kv.layout.packed_page_bytes(),
          kv.layout.packed_head_bytes(layer)};
}

}  // namespace kv2::cuda
