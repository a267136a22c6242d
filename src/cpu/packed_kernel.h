// SPDX-License-Identifier: Apache-2.0
// Attention of a tile of queries straight from the 2-bit codes of a page: nothing is expanded. Queries and
// softmax weights become 16-bit fixed point, so that both inner products are exact integer sums; scale and
// offset stay outside:
//   logit = scale·(q·codes) + offset·Σq          out += Σ (p·scale)·codes + Σ p·offset
// A row's bits depend on that row and the page alone, on every SIMD target the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/attend_kernel.h"
#include "quant/page_layout.h"

namespace kv2::cpu {

constexpr int kMostCodedDim = 256;
/// What the kernel takes: groups of whole vectors of 16 channels. Others are expanded (expand_packed_*).
inline bool reads_codes(const Int2Layout& layout) {
  return layout.group % 16 == 0 && layout.head_dim % 16 == 0 && layout.head_dim <= kMostCodedDim;
}

/// A tile's queries times softmax_scale, in units of each row: q ≈ unit·(256·high + low). What rounding left
/// of a group, times the mean code 1.5, is added to all its logits: then codes count by their distance
/// from 1.5.
struct CodedQueries {
  int8_t* halves;  // [n_rows][2][head_dim] high bytes, low bytes
  float* unit;     // [n_rows]
  float* rest;     // [n_rows, groups] 1.5·(Σq − unit·Σ(256·high + low))
  float* sum;      // [n_rows, groups] Σq

  static size_t floats(int n_rows, const Int2Layout& layout) {
    return static_cast<size_t>(n_rows) *
               (static_cast<size_t>(layout.head_dim) / 2 + 1 + 2 * static_cast<size_t>(layout.n_groups())) +
           64;
  }
  static CodedQueries at(float* memory, int n_rows, const Int2Layout& layout) {
    const size_t n = static_cast<size_t>(n_rows), g = static_cast<size_t>(layout.n_groups());
    float* unit = memory + n * static_cast<size_t>(layout.head_dim) / 2;
    return {reinterpret_cast<int8_t*>(memory), unit, unit + n, unit + n + n * g};
  }
};

void code_queries(const TileView& tile, const Int2Layout& layout, const CodedQueries& to);

/// Some packed pages, one after the other, all 64 tokens for every row. How many come in one call changes no
/// bit: one at a time would leave the core waiting at every step of the softmax.
struct PackedPages {
  static constexpr int kMost = 4;
  const std::byte* codes[kMost];  // the head pages
  int n = 0;
  ComingPage coming[kMost];
  bool first = false;  // the partial holds nothing yet
};
void attend_packed(const TileView& tile, const CodedQueries& queries, const PackedPages& pages,
                   const Int2Layout& layout, const Partial& partial);

}  // namespace kv2::cpu
