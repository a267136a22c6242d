// SPDX-License-Identifier: Apache-2.0
// Sizes of pages from a CacheSpec and a model's shape. Nothing here knows how a backend arranges bytes inside
// a head page.
#include "quant/page_layout.h"

#include <algorithm>

#include "base/check.h"
#include "quant/page_codec.h"

namespace kv2 {

int default_group(int head_dim) {
  if (head_dim <= 0 || head_dim % 4 != 0) return 0;
  if (head_dim <= 128) return head_dim;
  for (int group = 128; group > 0; group -= 4) {
    if (head_dim % group == 0) return group;
  }
  return 0;
}

namespace {

constexpr size_t kAlignment = 64;  // of a layer's part

size_t align(size_t bytes, size_t to) {
  return (bytes + to - 1) / to * to;
}

void check_shape(const KvShape& shape) {
  if (shape.n_layers <= 0 || shape.n_kv_heads <= 0 || shape.head_dim <= 0) {
    throw_error(ErrorCode::BadArgument, "a cache needs layers, KV heads and a head_dim, found {}, {} and {}",
                shape.n_layers, shape.n_kv_heads, shape.head_dim);
  }
}

void override_layer(const LayerOverride& o, LayerLayout& layer) {
  switch (o.form) {
    case LayerOverride::Form::Bf16:
      layer.k = layer.v = {.codec = CodecId::Bf16, .bits = 16};
      layer.rounded = true;
      return;
    case LayerOverride::Form::Rounded:
      layer.k = layer.v = {.codec = CodecId::Affine, .bits = o.bits_k};
      layer.rounded = true;
      return;
    case LayerOverride::Form::Bits:
      layer.k.bits = o.bits_k;
      layer.v.bits = o.bits_v;
      layer.rounded = false;
      return;
  }
}

/// Every layer's formats as the method has them, then the overrides in their order.
std::vector<LayerLayout> formats_of(const Method& method, int n_layers) {
  std::vector<LayerLayout> layers(static_cast<size_t>(n_layers), LayerLayout{.k = method.k, .v = method.v});
  for (const LayerOverride& o : method.overrides) {
    for (const int index : o.layers) {
      if (index < -n_layers || index >= n_layers) {
        throw_error(ErrorCode::BadArgument,
                    "layers={}: this model has layers 0 to {} (or -1 to -{} from the end)", index,
                    n_layers - 1, n_layers);
      }
      LayerLayout& layer = layers[static_cast<size_t>(index < 0 ? index + n_layers : index)];
      layer = {.k = method.k, .v = method.v};
      override_layer(o, layer);
    }
  }
  return layers;
}

size_t place(std::vector<LayerLayout>& layers, const KvShape& shape) {
  size_t end = 0;
  for (LayerLayout& l : layers) {
    l.k = page_codec(l.k.codec).resolve(l.k, shape.head_dim);
    l.v = page_codec(l.v.codec).resolve(l.v, shape.head_dim);
    l.k_bytes = align(page_codec(l.k.codec).bytes(l.k, shape), 8);
    l.v_bytes = align(page_codec(l.v.codec).bytes(l.v, shape), 8);
    l.offset = end;
    end = align(end + l.bytes(), kAlignment);
  }
  return end;
}

}  // namespace

PageLayout PageLayout::of(const CacheSpec& spec, const KvShape& shape) {
  check_shape(shape);
  PageLayout out;
  out.shape = shape;
  if (!spec.method.quantized()) return out;
  std::vector<LayerLayout> layers = formats_of(spec.method, shape.n_layers);
  out.packed_page_bytes_ = place(layers, shape);
  out.layers_ = std::make_shared<const std::vector<LayerLayout>>(std::move(layers));
  return out;
}

PageLayout PageLayout::of_int2(const KvShape& shape, int group) {
  const SideFormat side{.codec = CodecId::Affine, .bits = 2, .group = group};
  return of({.method = {.name = "", .k = side, .v = side}}, shape);
}

PageLayout PageLayout::with_tables(std::span<const std::vector<float>> k,
                                   std::span<const std::vector<float>> v) const {
  if (!packs() || (k.empty() && v.empty())) return *this;
  std::vector<LayerLayout> layers = *layers_;
  for (size_t i = 0; i < layers.size(); i++) {
    if (!k.empty()) layers[i].k_tables = k[i];
    if (!v.empty()) layers[i].v_tables = v[i];
  }
  PageLayout out = *this;
  out.layers_ = std::make_shared<const std::vector<LayerLayout>>(std::move(layers));
  return out;
}

std::string PageLayout::describe() const {
  if (!packs()) return "bf16";
  std::string out;
  const auto same = [](const LayerLayout& a, const LayerLayout& b) { return a.k == b.k && a.v == b.v; };
  std::vector<bool> told(layers_->size());
  for (size_t i = 0; i < layers_->size(); i++) {
    if (told[i]) continue;
    std::string which;
    for (size_t j = i; j < layers_->size(); j++) {
      if (!same((*layers_)[i], (*layers_)[j])) continue;
      told[j] = true;
      which += fmt::format("{}{}", which.empty() ? "" : ",", j);
    }
    const LayerLayout& l = (*layers_)[i];
    const std::string sides =
        l.k == l.v ? kv2::describe(l.k) : fmt::format("K {}, V {}", kv2::describe(l.k), kv2::describe(l.v));
    const bool all =
        std::all_of(layers_->begin(), layers_->end(), [&](const LayerLayout& o) { return same(l, o); });
    out += all ? sides : fmt::format("{}layers {}: {}", out.empty() ? "" : "; ", which, sides);
  }
  return out;
}

}  // namespace kv2
