// SPDX-License-Identifier: Apache-2.0
// Sums over a vocabulary, eight doubles side by side: sum j has the elements j, j + 8, …, and the eight are
// added in order, so every target adds alike.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "eval/compare_logits.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// Once per target, so after the two above.
#include <hwy/contrib/math/math-inl.h>

#include "eval/compare_logits.h"

HWY_BEFORE_NAMESPACE();
namespace kv2::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kSums = 8;
using Doubles = hn::CappedTag<double, kSums>;
using Floats = hn::Rebind<float, Doubles>;

/// Of n terms, a multiple of kSums; term(i) is a vector of those from i on.
template <class Term>
HWY_ATTR double sum_of(size_t n, const Term& term) {
  const Doubles d;
  double sums[kSums] = {};
  for (size_t j = 0; j < kSums; j += hn::Lanes(d)) {
    auto sum = hn::Zero(d);
    for (size_t i = j; i + hn::Lanes(d) <= n; i += kSums) sum = hn::Add(sum, term(i));
    hn::StoreU(sum, d, sums + j);
  }
  double out = 0;
  for (const double x : sums) out += x;
  return out;
}

/// Σ exp(x − top) over n values, a multiple of kSums.
HWY_ATTR double SumExp(const float* x, size_t n, double top) {
  const Doubles d;
  const auto subtract = hn::Set(d, top);
  return sum_of(n, [&](size_t i) HWY_ATTR {
    return hn::Exp(d, hn::Sub(hn::PromoteTo(d, hn::LoadU(Floats(), x + i)), subtract));
  });
}

/// Σ p·(log p − log q); what has no weight adds nothing.
HWY_ATTR double SumDivergence(const float* p, double p_log_z, const float* q, double q_log_z, size_t n) {
  const Doubles d;
  const auto p_z = hn::Set(d, p_log_z), q_z = hn::Set(d, q_log_z);
  return sum_of(n, [&](size_t i) HWY_ATTR {
    const auto log_p = hn::Sub(hn::PromoteTo(d, hn::LoadU(Floats(), p + i)), p_z);
    const auto log_q = hn::Sub(hn::PromoteTo(d, hn::LoadU(Floats(), q + i)), q_z);
    const auto weight = hn::Exp(d, log_p);
    return hn::IfThenElseZero(hn::Gt(weight, hn::Zero(d)), hn::Mul(weight, hn::Sub(log_p, log_q)));
  });
}

}  // namespace kv2::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace kv2 {
namespace {

HWY_EXPORT(SumExp);
HWY_EXPORT(SumDivergence);

constexpr size_t kBlock = 8;  // kSums
using Tail = std::array<float, kBlock>;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// What lies behind the last whole block, filled up with logits that have no weight.
Tail tail_of(std::span<const float> logits) {
  Tail out;
  out.fill(kNothing);
  const size_t whole = logits.size() / kBlock * kBlock;
  std::copy(logits.begin() + whole, logits.end(), out.begin());
  return out;
}

/// The largest value; NaN where one is.
float largest(std::span<const float> logits) {
  Tail most = tail_of(logits);
  bool sound = std::none_of(most.begin(), most.end(), [](float x) { return std::isnan(x); });
  for (size_t i = 0; i + kBlock <= logits.size(); i += kBlock)
    for (size_t j = 0; j < kBlock; j++) {
      const float x = logits[i + j];
      sound &= x == x;
      most[j] = x > most[j] ? x : most[j];
    }
  return sound ? *std::max_element(most.begin(), most.end()) : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace

LogitRow summarize(std::span<const float> logits) {
  KV2_CHECK(!logits.empty());
  LogitRow out;
  const double top = largest(logits);
  const size_t whole = logits.size() / kBlock * kBlock;
  const auto sum = HWY_DYNAMIC_DISPATCH(SumExp);
  out.log_z = top + std::log(sum(logits.data(), whole, top) + sum(tail_of(logits).data(), kBlock, top));
  if (!std::isfinite(out.log_z))
    throw_error(ErrorCode::BadFile,
                "logits are NaN or infinite: weights of the model overflow or are damaged");
  out.arg_max =
      static_cast<int32_t>(std::find(logits.begin(), logits.end(), static_cast<float>(top)) - logits.begin());
  return out;
}

double kl_divergence(std::span<const float> p_logits, const LogitRow& p, std::span<const float> q_logits,
                     const LogitRow& q) {
  KV2_CHECK(p_logits.size() == q_logits.size());
  const size_t whole = p_logits.size() / kBlock * kBlock;
  const auto sum = HWY_DYNAMIC_DISPATCH(SumDivergence);
  return std::max(0.0, sum(p_logits.data(), p.log_z, q_logits.data(), q.log_z, whole) +
                           sum(tail_of(p_logits).data(), p.log_z, tail_of(q_logits).data(), q.log_z, kBlock));
}

double quantile(std::span<const float> sorted, double q) {
  KV2_CHECK(!sorted.empty() && q >= 0 && q <= 1);
  const double at = q * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(at), above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] +
         (at - static_cast<double>(below)) * (static_cast<double>(sorted[above]) - sorted[below]);
}

}  // namespace kv2
#endif  // HWY_ONCE
