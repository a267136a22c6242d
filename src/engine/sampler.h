// Sampler: picks the next token from logits. Deterministic for a seed, independent of platform (own generator).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kv2 {

struct SamplingParams {
  float temperature = 0;  // 0: arg max
  int top_k = 0;          // 0: all
  float top_p = 1;        // (0, 1]
  float min_p = 0;        // [0, 1): keep tokens with p >= min_p · p_max
  uint64_t seed = 0;

  void validate() const;  // BadArgument naming the field, its value and the range
};

class Sampler {
 public:
  explicit Sampler(const SamplingParams& params);
  /// logits [vocab]; NaN logits are never picked; throws Bug when none is finite.
  int32_t pick(std::span<const float> logits);

 private:
  SamplingParams params_;
  uint64_t state_[2];
  std::vector<std::pair<float, int32_t>> candidates_;
};

}  // namespace kv2
