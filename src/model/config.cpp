// SPDX-License-Identifier: Apache-2.0
// What both readers of ModelConfig share: the bounds of every value and the RoPE frequencies.
#include "model/config.h"

#include <cmath>
#include <numbers>

#include "base/check.h"
#include "model/arch.h"

namespace kv2 {
namespace {

// Far above every published model; small enough that widths fit in int32 and products in int64.
constexpr int64_t kMaxLayers = 1024, kMaxWidth = 1 << 20, kMaxHeads = 1024, kMaxHeadWidth = 256,
                  kMaxVocab = 1 << 22;
constexpr int64_t kMaxContext = int64_t{1} << 31;

void check_range(const char* what, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    throw_error(ErrorCode::BadFile, "{} is {}, supported are {} to {}", what, value, low, high);
}

void check_rope(const RopeConfig& rope, int head_dim) {
  if (!(std::isfinite(rope.theta) && rope.theta > 1 && rope.theta <= 1e12))
    throw_error(ErrorCode::BadFile, "rope theta is {}, supported are values above 1 up to 1e12", rope.theta);
  if (!(std::isfinite(rope.factor) && rope.factor >= 1e-3 && rope.factor <= 1e6))
    throw_error(ErrorCode::BadFile, "rope scaling factor is {}, supported are 0.001 to 1e6", rope.factor);
  if (rope.scaling == RopeConfig::Scaling::Llama3) {
    const double low = rope.low_frequency_factor, high = rope.high_frequency_factor;
    if (!(std::isfinite(low) && std::isfinite(high) && low > 0 && high > low))
      throw_error(
          ErrorCode::BadFile,
          "llama3 rope scaling: low_freq_factor {} and high_freq_factor {} must satisfy 0 < low < high", low,
          high);
    check_range("llama3 rope scaling: original_max_position_embeddings", rope.original_context, 1,
                kMaxContext);
  }
  if (rope.frequency_factors.empty()) return;
  if (static_cast<int>(rope.frequency_factors.size()) != head_dim / 2)
    throw_error(ErrorCode::BadFile, "rope_freqs.weight has {} values, head_dim {} needs {}",
                rope.frequency_factors.size(), head_dim, head_dim / 2);
  for (float f : rope.frequency_factors)
    if (!(std::isfinite(f) && f > 0))
      throw_error(ErrorCode::BadFile, "rope_freqs.weight contains {}, supported are positive factors", f);
}

}  // namespace

void check_config(const ModelConfig& c) {
  check_range("number of layers", c.n_layers, 1, kMaxLayers);
  check_range("hidden size", c.hidden, 1, kMaxWidth);
  check_range("intermediate size", c.intermediate, 1, kMaxWidth);
  check_range("number of attention heads", c.n_heads, 1, kMaxHeads);
  check_range("number of KV heads", c.n_kv_heads, 1, kMaxHeads);
  check_range("vocabulary size", c.vocab, 1, kMaxVocab);
  check_range("context length", c.context, 1, kMaxContext);
  check_range("head_dim", c.head_dim, 1, kMaxHeadWidth);
  if (c.head_dim % 16 != 0)
    throw_error(ErrorCode::Unsupported, "head_dim is {}, supported are multiples of 16 up to {}", c.head_dim,
                kMaxHeadWidth);
  if (c.n_heads % c.n_kv_heads != 0)
    throw_error(ErrorCode::BadFile, "{} attention heads are no multiple of {} KV heads", c.n_heads,
                c.n_kv_heads);
  if (!(std::isfinite(c.rms_epsilon) && c.rms_epsilon >= 0 && c.rms_epsilon <= 1))
    throw_error(ErrorCode::BadFile, "RMSNorm epsilon is {}, supported are 0 to 1", c.rms_epsilon);
  check_rope(c.rope, c.head_dim);
  for (int32_t id : c.eos)
    if (id < 0 || id >= c.vocab)
      throw_error(ErrorCode::BadFile, "end-of-text token {} is outside the vocabulary of {} tokens", id,
                  c.vocab);
  if (c.bos < -1 || c.bos >= c.vocab)
    throw_error(ErrorCode::BadFile, "begin-of-text token {} is outside the vocabulary of {} tokens", c.bos,
                c.vocab);
}

std::vector<float> RopeConfig::inv_frequency(int head_dim) const {
  std::vector<float> out(head_dim / 2);
  for (int i = 0; i < head_dim / 2; i++) {
    double f = std::pow(theta, -2.0 * i / head_dim);
    if (scaling == Scaling::Linear) f /= factor;
    if (scaling == Scaling::Llama3) {
      // Long wavelengths are interpolated by `factor`, short ones kept, with a linear ramp in frequency
      // between.
      const double turns = static_cast<double>(original_context) * f / (2 * std::numbers::pi);
      if (turns < low_frequency_factor) {
        f /= factor;
      } else if (turns <= high_frequency_factor) {
        const double smooth = (turns - low_frequency_factor) / (high_frequency_factor - low_frequency_factor);
        f = (1 - smooth) * f / factor + smooth * f;
      }
    }
    if (!frequency_factors.empty()) f /= static_cast<double>(frequency_factors[i]);
    out[i] = static_cast<float>(f);
  }
  return out;
}

}  // namespace kv2
