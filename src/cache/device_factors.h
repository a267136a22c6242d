// SPDX-License-Identifier: Apache-2.0
// DeviceFactors: the tables of the coder `feedback` of all layers in one slab of device memory, in the form
// in which every backend's kernels read them (FeedbackTables of all KV heads). Nothing else knows how they
// lie.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cache/device_slab.h"
#include "cache/fitted_method.h"
#include "ops/backend.h"

namespace kv2 {

class DeviceFactors {
 public:
  /// factors: one per layer, of the sides that the layer codes with `feedback`, or empty where none does.
  /// Only reads them here.
  DeviceFactors(Backend& backend, const Method& method, const PageLayout& layout,
                std::span<const LayerFactors> factors);

  FeedbackTables k(int layer) const;
  FeedbackTables v(int layer) const;

  /// What the slab takes: a function of the method and the layout alone.
  static size_t bytes(const Method& method, const PageLayout& layout);

 private:
  struct Layer {
    FeedbackTables k, v;
  };
  DeviceSlab slab_;
  std::vector<Layer> layers_;
};

}  // namespace kv2
