// Coder: how a vector's codes, scale and offset are chosen. A codec (quant/int2) says how they are stored.
// `round`: clip to an order statistic of |x| over the head's vector, then per group of channels min/max and nearest
// codes. The arithmetic is a specification in fp32 (docs/page-format.md): codes are bit-identical on every backend.
#pragma once

#include <algorithm>

#include "kv2/cache.h"

namespace kv2 {

struct Coder {
  CoderKind kind = CoderKind::Round;
  int group = 0;       // channels that share one scale and offset; divides head_dim
  int clip_index = -1; // index into ascending |x| of the threshold; -1: no clip. See clip_index().
};

/// min(⌊ratio·d⌋, d−1) in double precision; ratio >= 1 or <= 0 means no clip (-1).
inline int clip_index(double ratio, int head_dim) {
  if (ratio >= 1.0 || ratio <= 0.0) return -1;
  return std::min(static_cast<int>(ratio * head_dim), head_dim - 1);
}

}  // namespace kv2
