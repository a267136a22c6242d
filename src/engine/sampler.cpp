// SPDX-License-Identifier: Apache-2.0
#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "ops/arg_max.h"

namespace kv2 {
namespace {

uint64_t splitmix64(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

bool better(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

int32_t best_of(std::span<const float> logits) {
  return require_token(arg_max(logits), logits.size());
}

}  // namespace

int32_t require_token(int32_t best, size_t n_logits) {
  if (best < 0)
    throw_error(ErrorCode::BadFile,
                "all {} logits are NaN or -inf: weights of the model overflow or are damaged", n_logits);
  return best;
}

void SamplingParams::validate() const {
  const auto bad = [](const char* field, double value, const char* range) {
    throw_error(ErrorCode::BadArgument, "{} is {}, supported are {}", field, value, range);
  };
  if (!(temperature >= 0 && temperature <= 100)) bad("temperature", temperature, "0 (greedy) to 100");
  if (top_k < 0) bad("top-k", top_k, "0 (all) and above");
  if (!(top_p > 0 && top_p <= 1)) bad("top-p", top_p, "values above 0 up to 1");
  if (!(min_p >= 0 && min_p < 1)) bad("min-p", min_p, "0 to below 1");
}

Sampler::Sampler(const SamplingParams& params) : params_(params) {
  params.validate();
  uint64_t seed = params.seed;
  state_[0] = splitmix64(seed);
  state_[1] = splitmix64(seed);
}

/// xoroshiro128++ (Blackman and Vigna 2019); splitmix64 never gives it two zeros in a row.
uint64_t Sampler::next() {
  const uint64_t a = state_[0], b = state_[1] ^ a, out = std::rotl(a + state_[1], 17) + a;
  state_[0] = std::rotl(a, 49) ^ b ^ (b << 21);
  state_[1] = std::rotl(b, 28);
  return out;
}

void Sampler::keep_best(size_t n) {
  n = std::min(n, candidates_.size());
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(n),
                    candidates_.end(), better);
  n_sorted_ = n;
}

/// How many of the best candidates together have top_p of the mass `total` (weights relative to the best
/// one). Sorts as many as it takes: mostly a few of a large vocabulary.
size_t Sampler::nucleus(double total) {
  const double wanted = params_.top_p * total, best = candidates_[0].first;
  double mass = 0;
  for (size_t n = 0; n < candidates_.size(); n++) {
    if (n == n_sorted_) keep_best(std::max<size_t>(64, 4 * n_sorted_));
    mass += std::exp(candidates_[n].first - best);
    if (mass >= wanted) return n + 1;
  }
  return candidates_.size();
}

int32_t Sampler::pick(std::span<const float> logits) {
  if (greedy()) return best_of(logits);
  candidates_.clear();
  n_sorted_ = 0;
  for (size_t i = 0; i < logits.size(); i++)
    if (logits[i] > -INFINITY)
      candidates_.emplace_back(logits[i] / params_.temperature, static_cast<int32_t>(i));
  if (candidates_.empty()) require_token(-1, logits.size());

  if (params_.top_k > 0 && static_cast<size_t>(params_.top_k) < candidates_.size()) {
    keep_best(params_.top_k);
    candidates_.resize(params_.top_k);
  } else {
    std::iter_swap(candidates_.begin(), std::min_element(candidates_.begin(), candidates_.end(), better));
  }
  const double best = candidates_[0].first;
  if (best == INFINITY) return best_of(logits);
  const auto weight = [&](const auto& c) { return std::exp(static_cast<double>(c.first) - best); };
  if (params_.top_p < 1) {
    double total = 0;
    for (const auto& c : candidates_) total += weight(c);
    candidates_.resize(nucleus(total));
  }
  if (params_.min_p > 0) std::erase_if(candidates_, [&](const auto& c) { return weight(c) < params_.min_p; });

  // Single precision is plenty for a draw, and a vocabulary of 49,152 asks for as many exponentials.
  weights_.resize(candidates_.size());
  double total = 0;
  for (size_t i = 0; i < weights_.size(); i++)
    total += weights_[i] = std::exp(candidates_[i].first - static_cast<float>(best));
  double at = static_cast<double>(next() >> 11) * 0x1p-53 * total;
  for (size_t i = 0; i < weights_.size(); i++) {
    at -= weights_[i];
    if (at < 0) return candidates_[i].second;
  }
  return candidates_[0].second;  // rounding at the very end of the sum
}

}  // namespace kv2
