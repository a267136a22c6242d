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

bool feeds_back(const LayerLayout& layer, CoderKind coder) {
  return coder == CoderKind::Feedback && !layer.rounded;
}

}  // namespace

size_t DeviceFactors::bytes(const Method& method, const PageLayout& layout) {
  size_t sum = 0;
  for (int l = 0; layout.packs() && l < layout.shape.n_layers; l++) {
    const LayerLayout& layer = layout.layer(l);
    if (feeds_back(layer, method.coder_k())) sum += Sizes(layout.shape, layer.k.group).bytes();
    if (feeds_back(layer, method.coder_v())) sum += Sizes(layout.shape, layer.v.group).bytes();
  }
  return sum;
}

DeviceFactors::DeviceFactors(Backend& backend, const Method& method, const PageLayout& layout,
                             std::span<const LayerFactors> factors)
    : slab_(backend, bytes(method, layout)) {
  if (!slab_.data()) return;
  const KvShape& shape = layout.shape;
  KV2_CHECK(static_cast<int>(factors.size()) == shape.n_layers, "factors of {} layers, not {}",
            factors.size(), shape.n_layers);
  std::byte* next = slab_.data();
  const auto place = [&](const std::vector<float>& values, size_t n) {
    KV2_CHECK(values.size() == n, "{} values of a feedback table, expected {}", values.size(), n);
    backend.upload(next, values.data(), n * sizeof(float));
    const auto* at = reinterpret_cast<const float*>(next);
    next += align(n * sizeof(float));
    return at;
  };
  const auto place_side = [&](const FeedbackFactors& side, const SideFormat& format) {
    const Sizes sizes(shape, format.group);
    FeedbackTables out;
    out.f = place(side.f, sizes.f);
    out.weight = place(side.weight, sizes.weight);
    out.ones = place(side.ones, sizes.ones);
    return out;
  };
  for (int l = 0; l < shape.n_layers; l++) {
    const LayerLayout& layer = layout.layer(l);
    Layer& out = layers_.emplace_back();
    if (feeds_back(layer, method.coder_k())) out.k = place_side(factors[l].k, layer.k);
    if (feeds_back(layer, method.coder_v())) out.v = place_side(factors[l].v, layer.v);
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
