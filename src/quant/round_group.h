// SPDX-License-Identifier: Apache-2.0
// The coder `round` for one group of values: range, scale and offset, nearest codes; for any codec whose
// groups are values with a scale. fp32 with one rounding per operation, as docs/page-format.md says; scale
// and offset are fp16 numbers and codes come from them. int2 (quant/int2) is the same arithmetic with its own
// vectorised form.
#pragma once

#include <cstdint>

#include "base/float16.h"
#include "quant/coder.h"

namespace kv2 {

/// x̂ = scale·code + offset. The offset is stored or follows from the scale, exactly.
struct GroupFit {
  float scale, offset;
};

/// −zero·scale of a format without a stored offset.
float implied_offset(OffsetKind kind, int bits, float scale);

/// x [n] finite -> scale and offset. Sums run in index order.
GroupFit fit_group(const float* x, int n, int bits, OffsetKind offset, RangeRule rule);
/// Nearest codes [n], one per byte: clamp(floor((x − offset) / scale + 0.5), 0, 2^bits − 1).
void code_group(const float* x, int n, int bits, const GroupFit& fit, uint8_t* codes);
/// Fit and codes by the rule: nearest ones, of the published cells for RangeRule::LloydMax; a constant group
/// with a stored offset has code 0.
GroupFit round_group(const float* x, int n, int bits, OffsetKind offset, RangeRule rule, uint8_t* codes);

}  // namespace kv2
