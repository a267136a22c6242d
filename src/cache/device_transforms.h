// SPDX-License-Identifier: Apache-2.0
// DeviceTransforms: the transforms of all layers in one slab of device memory. Equal matrices are stored
// once: the Hadamard method has a single one for K, V, encode, decode and every layer, which then stays in
// the processor's cache.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "cache/device_slab.h"
#include "ops/backend.h"
#include "quant/transform.h"

namespace kv2 {

class DeviceTransforms {
 public:
  /// transforms: one per layer, or empty. Only reads them here.
  DeviceTransforms(Backend& backend, std::span<const LayerTransforms> transforms);

  /// Members of a layer in the order k.encode, k.decode, k.mean, v.encode, v.decode, v.mean; nullptr where
  /// empty.
  std::array<const float*, 6> layer(int layer) const;

  /// Whether K's decode is encodeᵀ bit for bit, as a rotation's is.
  bool rotates_keys(int layer) const;

  static size_t bytes(std::span<const LayerTransforms> transforms);
  /// Of a layer whose four matrices all differ, with so many means.
  static size_t calibrated_layer_bytes(const KvShape& shape, int n_means);

 private:
  DeviceSlab slab_;
  std::vector<std::array<const float*, 6>> layers_;
  std::vector<bool> rotates_keys_;
};

}  // namespace kv2
