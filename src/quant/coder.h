// SPDX-License-Identifier: Apache-2.0
// Coder: how a vector's codes, scale and offset are chosen. A codec (quant/page_codec.h, quant/int2) says how
// they are stored. `round`: clip to an order statistic of |x| over the head's vector, then per group of
// channels min/max and nearest codes. `feedback`: codes under the metric of whoever reads the vector, each
// channel taking up the error of those before it (quant/feedback). The arithmetic of both is a specification
// in fp32 (docs/page-format.md): codes are bit-identical on every backend.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kv2/cache.h"

namespace kv2 {

/// What the coder `feedback` knows of a metric G, of all KV heads of one layer and side; made by
/// fit_feedback() (quant/feedback/factors.h). Device memory of the backend that codes: KvCache holds it in
/// one slab. G⁻¹ = UᵀU with U upper triangular.
struct FeedbackTables {
  const float* f = nullptr;       // [n_kv_heads, head_dim, head_dim] row-major, U_ij / U_ii; read for j > i
  const float* weight = nullptr;  // [n_kv_heads, head_dim] 1 / U_ii²
  const float* ones = nullptr;    // [n_kv_heads, head_dim / group, head_dim] a group's ones, swept

  FeedbackTables of_head(int kv_head, int head_dim, int group) const {
    const size_t h = static_cast<size_t>(kv_head), d = static_cast<size_t>(head_dim);
    return {f + h * d * d, weight + h * d, ones + h * (d / static_cast<size_t>(group)) * d};
  }
};

/// The step sizes that `feedback` starts from, in units of the best uniform step of a Gaussian with the
/// group's spread, and how often each start is refitted by least squares.
struct FeedbackSearch {
  static constexpr int kMaxSteps = 8;
  float steps[kMaxSteps] = {};
  int n_steps = 0, refits = 0;
};

struct Coder {
  CoderKind kind = CoderKind::Round;
  int group = 0;  // channels that share one scale and offset; divides head_dim
  // Of `round`: index into ascending |x| of the threshold; -1: no clip. See clip_index().
  int clip_index = -1;
  RangeRule range = RangeRule::MinMax;
  NormRule norm_rule = NormRule::Corrected;
  // Of `feedback`.
  FeedbackTables tables;
  FeedbackSearch search;
};

/// Bound of every coder's stack buffers; CacheSpec::validate refuses larger heads.
inline constexpr int kMaxHeadDim = 512;

/// min(⌊ratio·d⌋, d−1); ratio >= 1 or <= 0 means no clip (-1). Ratios are kept as float: 0.9f·80 is 71.999998
/// in double, so a product within 1e-4 below an integer counts as that integer (what the decimal ratio
/// meant).
inline int clip_index(double ratio, int head_dim) {
  if (ratio >= 1.0 || ratio <= 0.0) return -1;
  return std::min(static_cast<int>(ratio * head_dim + 1e-4), head_dim - 1);
}

}  // namespace kv2
