// SPDX-License-Identifier: Apache-2.0
#include "cache/device_factors.h"

#include "base/check.h"

namespace kv2 {
namespace {

constexpr size_t align(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

/// Floats of one layer and side.
struct Sizes {
  size_t f, weight, ones;

  Sizes(const KvShape& shape, int group) {
    const size_t d = shape.head_dim;
    weight = shape.n_kv_heads * d;
    f = weight * d;
    ones = weight * (d / group);
  }
  size_t bytes() const {
    return align(f * sizeof(float)) + align(weight * sizeof(float)) + align(ones * sizeof(float));
  }
};

}  // namespace

size_t DeviceFactors::bytes(const Method& method, const KvShape& shape, int group) {
  const size_t sides = (method.coder_k() == CoderKind::Feedback) + (method.coder_v() == CoderKind::Feedback);
  return sides == 0 ? 0 : shape.n_layers * sides * Sizes(shape, group).bytes();
}

DeviceFactors::DeviceFactors(Backend& backend, const Method& method, const KvShape& shape, int group,
                             std::span<const LayerFactors> factors)
    : slab_(backend, bytes(method, shape, group)) {
  if (!slab_.data()) return;
  KV2_CHECK(static_cast<int>(factors.size()) == shape.n_layers, "factors of {} layers, not {}",
            factors.size(), shape.n_layers);
  const Sizes sizes(shape, group);
  std::byte* next = slab_.data();
  const auto place = [&](const std::vector<float>& values, size_t n) {
    KV2_CHECK(values.size() == n, "{} values of a feedback table, expected {}", values.size(), n);
    backend.upload(next, values.data(), n * sizeof(float));
    const auto* at = reinterpret_cast<const float*>(next);
    next += align(n * sizeof(float));
    return at;
  };
  const auto place_side = [&](const FeedbackFactors& side, CoderKind coder) {
    if (coder != CoderKind::Feedback) return FeedbackTables{};
    FeedbackTables out;
    out.f = place(side.f, sizes.f);
    out.weight = place(side.weight, sizes.weight);
    out.ones = place(side.ones, sizes.ones);
    return out;
  };
  for (const LayerFactors& layer : factors) {
    const FeedbackTables k = place_side(layer.k, method.coder_k());
    layers_.push_back({k, place_side(layer.v, method.coder_v())});
  }
}

FeedbackTables DeviceFactors::k(int layer) const {
  if (layers_.empty()) return {};
  return layers_.at(layer).k;
}
FeedbackTables DeviceFactors::v(int layer) const {
  if (layers_.empty()) return {};
  return layers_.at(layer).v;
}

}  // namespace kv2
