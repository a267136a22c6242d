// SPDX-License-Identifier: Apache-2.0
// FittedMethod: what a method is on one model, layer by layer, as a cache takes it. engine/transforms.h fits
// it from a calibration; here it is plain host data.
#pragma once

#include <utility>
#include <vector>

#include "quant/feedback/factors.h"
#include "quant/transform.h"

namespace kv2 {

/// Of one layer; a side that the method rounds has none.
struct LayerFactors {
  FeedbackFactors k, v;
};

struct FittedMethod {
  std::vector<LayerTransforms> transforms;     // [n_layers], or empty for identity everywhere
  std::vector<std::pair<float, float>> clips;  // [n_layers] ratios of K and V, used where the method has none
                                               // of its own; empty: no clip
  std::vector<std::vector<float>>
      k_tables;                       // [n_layers] constants of K's codec, where it has any; else empty
  std::vector<LayerFactors> factors;  // [n_layers] with the coder `feedback`, else empty
};

}  // namespace kv2
