// The transforms and clips of a CacheSpec on a model: from nothing (identity, Hadamard) or from a Calibration.
#pragma once

#include <utility>
#include <vector>

#include "kv2/cache.h"
#include "kv2/calibrate.h"
#include "quant/page_layout.h"
#include "quant/transform.h"

namespace kv2 {

struct FittedMethod {
  std::vector<LayerTransforms> transforms;      // [n_layers] or empty for identity
  std::vector<std::pair<float, float>> clips;   // [n_layers] {k, v} ratios
};

/// Throws BadArgument with the command that makes one when `spec` needs a calibration and there is none.
FittedMethod fit_method(const CacheSpec& spec, const KvShape& shape, const Calibration* calibration);

}  // namespace kv2
