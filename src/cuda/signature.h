// SPDX-License-Identifier: Apache-2.0
// Formats, layouts and coders as numbers for Recorder::sign: every member that a launch may depend on. A
// recorded step is found again by these numbers alone; one that is missing would let a cache replay another's
// step.
#pragma once

#include <tuple>

#include "ops/params.h"

namespace kv2::cuda {

inline auto signature(const SideFormat& f) {
  return std::tuple(f.codec, f.bits, f.group, f.offset, f.norm, f.kept, f.wide);
}
inline auto signature(const LayerLayout& p) {
  return std::tuple(signature(p.k), signature(p.v), p.rounded, p.offset, p.k_bytes, p.v_bytes);
}
inline auto signature(const KvView& kv, int layer) {
  static const LayerLayout none;
  const KvShape& s = kv.layout.shape;
  return std::tuple(kv.full, kv.packed, layer, s.n_layers, s.n_heads, s.n_kv_heads, s.head_dim,
                    kv.layout.packed_page_bytes(), kv.rule.sink_pages, kv.rule.recent_pages,
                    kv.rule.quantized, signature(kv.layout.packs() ? kv.layout.layer(layer) : none));
}
inline auto signature(const Coder& c) {
  const FeedbackSearch& s = c.search;
  static_assert(FeedbackSearch::kMaxSteps == 8);
  return std::tuple(c.kind, c.group, c.clip_index, c.range, c.norm_rule, c.tables.f, c.tables.weight,
                    c.tables.ones, s.n_steps, s.refits, s.steps[0], s.steps[1], s.steps[2], s.steps[3],
                    s.steps[4], s.steps[5], s.steps[6], s.steps[7]);
}

}  // namespace kv2::cuda
