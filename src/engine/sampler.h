// SPDX-License-Identifier: Apache-2.0
// Sampler: picks the next token from logits. Deterministic for a seed, independent of platform (own
// generator). Order: temperature, top-k, top-p over what top-k kept, min-p; ties by the smaller token id.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kv2/engine.h"

namespace kv2 {

/// `best`, an arg_max of logits; throws BadFile where it is none.
int32_t require_token(int32_t best, size_t n_logits);

class Sampler {
 public:
  explicit Sampler(const SamplingParams& params);
  /// logits [vocab]; NaN and -inf logits are never picked; throws BadFile when none is left.
  int32_t pick(std::span<const float> logits);
  /// pick() is arg_max (ops/arg_max.h).
  bool greedy() const { return params_.temperature == 0; }

 private:
  uint64_t next();
  void keep_best(size_t n);
  size_t nucleus(double total);

  SamplingParams params_;
  uint64_t state_[2];
  std::vector<std::pair<float, int32_t>> candidates_;
  std::vector<float> weights_;  // of the candidates, scratch of pick()
  size_t n_sorted_ = 0;         // candidates_[0, n_sorted_) are the best ones in order
};

}  // namespace kv2
