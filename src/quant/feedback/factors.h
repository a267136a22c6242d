// SPDX-License-Identifier: Apache-2.0
// From a metric to the tables of the coder `feedback`, in double precision: what a method does once per
// layer, KV head and side when a cache is made. The coder's arithmetic is in feedback.h.
#pragma once

#include <span>
#include <vector>

#include "quant/coder.h"
#include "quant/transform.h"

namespace kv2 {

/// FeedbackTables on the host, all KV heads of one layer and side. Empty where the coder needs none.
struct FeedbackFactors {
  std::vector<float> f, weight, ones;

  bool empty() const { return f.empty(); }
  FeedbackTables tables() const { return {f.data(), weight.data(), ones.data()}; }
};

/// metric M [n_kv_heads, head_dim, head_dim] in the model's own basis (symmetrised here), transform of the
/// same shape: G = decode·M·decodeᵀ, scaled to mean diagonal 1, plus damp·I. A metric without any weight (an
/// unused head) counts as the identity. Errors: BadFile for a value that is not finite; BadArgument unless
/// damp > 0.
FeedbackFactors fit_feedback(std::span<const float> metric, const Transform& transform, int group,
                             double damp);

}  // namespace kv2
