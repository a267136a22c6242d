// SPDX-License-Identifier: Apache-2.0
#include "quant/round_group.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace kv2 {
namespace {

float half_scale(float x) {
  return to_float(to_fp16(std::clamp(x, 0x1p-24f, 65504.0f)));
}
float half_offset(float x) {
  return to_float(to_fp16(std::clamp(x, -65504.0f, 65504.0f)));
}

struct Range {
  float low, high;
};

Range range_of(const float* x, int n) {
  Range r{x[0], x[0]};
  for (int i = 1; i < n; i++) {
    r.low = std::min(r.low, x[i]);
    r.high = std::max(r.high, x[i]);
  }
  r.low = r.low + 0.0f;  // -0 becomes +0
  return r;
}

float largest_magnitude(const float* x, int n) {
  float most = 0;
  for (int i = 0; i < n; i++) most = std::max(most, std::fabs(x[i]));
  return most;
}

/// Of OSCAR's Lloyd-Max option: cells of the best 4-level quantizer of a Gaussian, levels spread to ±0.58 and
/// ±1.75 σ.
constexpr float kLloydThreshold = 0.9810652732849121f;
constexpr float kLloydScale = 3.0191171f / 3.0f * 1.16f;

struct Moments {
  float mean, sigma;
};

Moments moments_of(const float* x, int n) {
  float sum = 0, square = 0;
  for (int i = 0; i < n; i++) sum = sum + x[i];
  const float mean = sum / static_cast<float>(n);
  for (int i = 0; i < n; i++) {
    const float e = x[i] - mean;
    square = square + e * e;
  }
  return {mean, std::sqrt(square / static_cast<float>(n) + 1e-8f)};
}

GroupFit lloyd_fit(const Moments& m) {
  const float scale = half_scale(kLloydScale * m.sigma);
  return {scale, half_offset(m.mean - 1.5f * scale)};
}

}  // namespace

float implied_offset(OffsetKind kind, int bits, float scale) {
  const float levels = static_cast<float>(1 << bits);
  return kind == OffsetKind::Symmetric ? -(levels / 2) * scale : -((levels - 1) / 2) * scale;
}

GroupFit fit_group(const float* x, int n, int bits, OffsetKind offset, RangeRule rule) {
  const float top = static_cast<float>((1 << bits) - 1);
  if (offset != OffsetKind::Stored) {
    const float most = largest_magnitude(x, n);
    const float above = offset == OffsetKind::Symmetric ? static_cast<float>((1 << (bits - 1)) - 1) : top / 2;
    const float scale = half_scale(most / above);
    return {scale, implied_offset(offset, bits, scale)};
  }
  if (rule == RangeRule::LloydMax) return lloyd_fit(moments_of(x, n));
  const Range r = range_of(x, n);
  const float scale = half_scale((r.high - r.low) / top);
  if (rule == RangeRule::IntegerZero && r.low != r.high)
    return {scale, half_offset(std::floor(r.low / scale + 0.5f) * scale)};
  return {scale, half_offset(r.low)};
}

void code_group(const float* x, int n, int bits, const GroupFit& fit, uint8_t* codes) {
  const float top = static_cast<float>((1 << bits) - 1);
  for (int i = 0; i < n; i++) {
    const float level = (x[i] - fit.offset) / fit.scale + 0.5f;
    const float within = level > 0 ? (level < top ? level : top) : 0.0f;
    codes[i] = static_cast<uint8_t>(static_cast<int>(within));  // not negative: truncation is floor
  }
}

GroupFit round_group(const float* x, int n, int bits, OffsetKind offset, RangeRule rule, uint8_t* codes) {
  if (offset == OffsetKind::Stored && rule == RangeRule::LloydMax) {
    KV2_CHECK(bits == 2, "Lloyd-Max cells of {} bits", bits);
    const Moments m = moments_of(x, n);
    for (int i = 0; i < n; i++) {
      const float z = (x[i] - m.mean) / m.sigma;
      codes[i] = static_cast<uint8_t>((z > -kLloydThreshold) + (z > 0) + (z > kLloydThreshold));
    }
    return lloyd_fit(m);
  }
  const GroupFit fit = fit_group(x, n, bits, offset, rule);
  const bool constant =
      offset == OffsetKind::Stored && std::all_of(x, x + n, [&](float v) { return v == x[0]; });
  if (constant)
    std::memset(codes, 0, static_cast<size_t>(n));
  else
    code_group(x, n, bits, fit, codes);
  return fit;
}

}  // namespace kv2
