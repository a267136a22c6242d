// SPDX-License-Identifier: Apache-2.0
// Coder: how a vector's codes, scale and offset are chosen. A codec (quant/int2) says how they are stored.
// `round`: clip to an order statistic of |x| over the head's vector, then per group of channels min/max and
// nearest codes. The arithmetic is a specification in fp32 (docs/page-format.md): codes are bit-identical on
// every backend.
#pragma once

#include <algorithm>

#include "kv2/cache.h"

namespace kv2 {

struct Coder {
  CoderKind kind = CoderKind::Round;
  int group = 0;        // channels that share one scale and offset; divides head_dim
  int clip_index = -1;  // index into ascending |x| of the threshold; -1: no clip. See clip_index().
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
