// SPDX-License-Identifier: Apache-2.0
#include "cache/device_transforms.h"

#include "base/check.h"

namespace kv2 {
namespace {

constexpr size_t align(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}
constexpr size_t kNone = SIZE_MAX;

/// Where every array of every layer lies in the slab.
struct SlabLayout {
  struct Piece {
    const std::vector<float>* values;
    size_t offset;
  };
  std::vector<Piece> pieces;                   // different ones only
  std::vector<std::array<size_t, 6>> offsets;  // per layer, kNone where empty
  size_t bytes = 0;

  explicit SlabLayout(std::span<const LayerTransforms> transforms) {
    for (const LayerTransforms& t : transforms) {
      const std::array<const std::vector<float>*, 6> members{&t.k.encode, &t.k.decode, &t.k.mean,
                                                             &t.v.encode, &t.v.decode, &t.v.mean};
      std::array<size_t, 6>& at = offsets.emplace_back();
      for (size_t i = 0; i < members.size(); i++) at[i] = place(*members[i]);
    }
  }

 private:
  size_t place(const std::vector<float>& values) {
    if (values.empty()) return kNone;
    for (const Piece& p : pieces)  // different arrays differ in their first numbers
      if (*p.values == values) return p.offset;
    pieces.push_back({&values, bytes});
    bytes += align(values.size() * sizeof(float));
    return pieces.back().offset;
  }
};

bool is_rotation(const Transform& t) {
  const size_t d = static_cast<size_t>(t.head_dim);
  if (t.encode.empty() || t.decode.size() != t.encode.size()) return false;
  for (size_t at = 0; at < t.encode.size(); at += d * d)
    for (size_t i = 0; i < d; i++)
      for (size_t j = 0; j < d; j++)
        if (t.encode[at + i * d + j] != t.decode[at + j * d + i]) return false;
  return true;
}

}  // namespace

DeviceTransforms::DeviceTransforms(Backend& backend, std::span<const LayerTransforms> transforms)
    : slab_(backend, bytes(transforms)) {
  const SlabLayout slab(transforms);
  for (const SlabLayout::Piece& p : slab.pieces)
    backend.upload(slab_.data() + p.offset, p.values->data(), p.values->size() * sizeof(float));
  for (const std::array<size_t, 6>& at : slab.offsets) {
    std::array<const float*, 6>& layer = layers_.emplace_back();
    for (size_t i = 0; i < at.size(); i++)
      layer[i] = at[i] == kNone ? nullptr : reinterpret_cast<const float*>(slab_.data() + at[i]);
  }
  for (const LayerTransforms& t : transforms) rotates_keys_.push_back(is_rotation(t.k));
}

std::array<const float*, 6> DeviceTransforms::layer(int layer) const {
  if (layers_.empty()) return {};
  KV2_CHECK(layer >= 0 && layer < static_cast<int>(layers_.size()), "layer {} of {}", layer, layers_.size());
  return layers_[layer];
}

bool DeviceTransforms::rotates_keys(int layer) const {
  return !rotates_keys_.empty() && rotates_keys_.at(static_cast<size_t>(layer));
}

size_t DeviceTransforms::bytes(std::span<const LayerTransforms> transforms) {
  return SlabLayout(transforms).bytes;
}

size_t DeviceTransforms::calibrated_layer_bytes(const KvShape& shape, int n_means) {
  const size_t width = sizeof(float) * shape.n_kv_heads * shape.head_dim;
  return 4 * align(width * shape.head_dim) + n_means * align(width);
}

}  // namespace kv2
