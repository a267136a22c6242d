// SPDX-License-Identifier: Apache-2.0
// Rows that try a coder, and a way to run a test on every SIMD target. For tests only.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <random>
#include <string>

#include "base/float16.h"

namespace kv2::testing {

enum class Kind {
  Shifted,
  Tiny,
  Huge,
  Constant,
  Zeros,
  Subnormal,
  HalfSubnormal,
  Outlier,
  Ties,
  NonFinite,
  RandomBits,
  Mixed,
  kCount
};

inline bf16 from_bits(uint32_t bits) {
  return {static_cast<uint16_t>(bits)};
}

/// One vector of a kind. Every kind has several magnitudes over the tokens of a page.
inline void fill(Kind kind, std::mt19937& rng, bf16* x, int d) {
  std::normal_distribution<float> normal;
  const auto pick = [&](int n) { return static_cast<int>(rng() % n); };
  const float shift = 3 * normal(rng), spread = std::exp(normal(rng));
  const bf16 constant = to_bf16(kind == Kind::Constant && pick(4) == 0 ? 1e30f * normal(rng) : normal(rng));
  for (int i = 0; i < d; ++i) {
    const float g = normal(rng);
    switch (kind) {
      case Kind::Shifted:
        x[i] = to_bf16(shift + spread * g);
        break;
      case Kind::Tiny:
        x[i] = to_bf16(1e-6f * (shift + g));
        break;
      case Kind::Huge:
        x[i] = to_bf16(std::ldexp(shift + g, 14 + pick(112)));
        break;
      case Kind::Constant:
        x[i] = constant;
        break;
      case Kind::Zeros:
        x[i] = from_bits(pick(2) ? 0x8000 : 0);
        break;
      case Kind::Subnormal:
        x[i] = from_bits((rng() & 0x8000) | (rng() & 0x7f));
        break;
      case Kind::HalfSubnormal:
        x[i] = to_bf16(std::ldexp(g, -16));
        break;
      case Kind::Outlier:
        x[i] = to_bf16(shift + g);
        break;
      case Kind::Ties:
        x[i] = to_bf16(0.5f * static_cast<float>(pick(7) - 2));
        break;
      case Kind::NonFinite:
        x[i] = pick(8) ? to_bf16(g) : from_bits(pick(3) ? 0x7f80 | (rng() & 0x8000) : rng() | 0x7f81);
        break;
      case Kind::RandomBits:
        x[i] = from_bits(rng());
        break;
      default:
        x[i] = to_bf16(std::exp(4 * normal(rng)) * g);
        break;
    }
  }
  if (kind == Kind::Outlier) x[pick(d)] = to_bf16(1000 * shift);
}

/// Runs `body` once per target that is compiled in and that this machine runs, and restores the choice.
template <class Body>
void for_each_target(const Body& body) {
  const auto all = hwy::SupportedTargets() & HWY_TARGETS;
  int n_targets = 0;
  for (auto rest = all; rest != 0; rest &= rest - 1) {
    const auto target = rest & -rest;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body(std::string(hwy::TargetName(target)));
    ++n_targets;
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  EXPECT_GT(n_targets, 0);
  ::testing::Test::RecordProperty("targets", n_targets);
}

}  // namespace kv2::testing
