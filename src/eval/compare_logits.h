// SPDX-License-Identifier: Apache-2.0
// Two models' next-token distributions compared from their logits, in double precision. Results depend on the
// values alone (one order of summation), so equal logits have a divergence of exactly zero.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kv2 {

/// What one row of logits says on its own.
struct LogitRow {
  double log_z = 0;      // log Σ exp(logit)
  int32_t arg_max = -1;  // the lowest of equals
};
/// Errors: BadFile where a logit is NaN or +inf.
LogitRow summarize(std::span<const float> logits);

/// -log p(token) in nats.
inline double negative_log_likelihood(std::span<const float> logits, const LogitRow& row, int32_t token) {
  return row.log_z - logits[token];
}

/// KL(p ‖ q) in nats, not below 0.
double kl_divergence(std::span<const float> p_logits, const LogitRow& p, std::span<const float> q_logits,
                     const LogitRow& q);

/// The value below which a share q of the sorted values lies, linearly interpolated between neighbours.
double quantile(std::span<const float> sorted, double q);

}  // namespace kv2
