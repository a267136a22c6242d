// SPDX-License-Identifier: Apache-2.0
#include "engine/transforms.h"

#include "base/check.h"
#include "quant/rotation.h"

namespace kv2 {
namespace {

const std::vector<float>& value_statistic(const LayerCalibration& layer, ValueTarget target) {
  switch (target) {
    case ValueTarget::AttentionOutput:
      return layer.c_s;
    case ValueTarget::EnergyWeighted:
      return layer.c_s_energy;
    case ValueTarget::SelfCovariance:
      return layer.v_cov;
  }
  KV2_CHECK(false, "value target {}", static_cast<int>(target));
  return layer.c_s;
}

void check_calibration(const CacheSpec& spec, const KvShape& shape, const Calibration* calibration) {
  if (calibration == nullptr)
    throw_error(
        ErrorCode::BadArgument,
        "method {} needs a calibration of this model and there is none; make one with: kv2 calibrate MODEL",
        spec.method.name);
  if (static_cast<int>(calibration->layers.size()) != shape.n_layers ||
      calibration->n_kv_heads != shape.n_kv_heads || calibration->head_dim != shape.head_dim)
    throw_error(ErrorCode::Mismatch,
                "the calibration is for {} layers, {} KV heads and head_dim {}, the model has {}, {} and {}; "
                "make one with: kv2 "
                "calibrate MODEL",
                calibration->layers.size(), calibration->n_kv_heads, calibration->head_dim, shape.n_layers,
                shape.n_kv_heads, shape.head_dim);
}

Transform rotation(const std::vector<float>& statistic, const char* name, int layer, const Method& method,
                   const KvShape& shape) {
  const size_t wanted = static_cast<size_t>(shape.n_kv_heads) * shape.head_dim * shape.head_dim;
  if (statistic.size() != wanted)
    throw_error(ErrorCode::BadFile, "calibration: layer {}: {} has {} values, expected {}", layer, name,
                statistic.size(), wanted);
  return calibrated_transform(statistic, shape.n_kv_heads, shape.head_dim, method.recipe, method.sharing);
}

}  // namespace

FittedMethod fit_method(const CacheSpec& spec, const KvShape& shape, const Calibration* calibration) {
  const Method& method = spec.method;
  FittedMethod out;
  if (!method.quantized()) return out;
  if (method.needs_calibration()) check_calibration(spec, shape, calibration);
  for (int i = 0; i < shape.n_layers; i++) {
    const LayerCalibration* layer = method.needs_calibration() ? &calibration->layers[i] : nullptr;
    if (method.transform == TransformKind::Hadamard) {
      const Transform h = hadamard_transform(shape.n_kv_heads, shape.head_dim);
      out.transforms.push_back({h, h});
    } else if (method.transform == TransformKind::Calibrated) {
      out.transforms.push_back(
          {rotation(layer->c_q, "c_q", i, method, shape),
           rotation(value_statistic(*layer, method.value_target), "the value statistic", i, method, shape)});
    }
    out.clips.emplace_back(method.clip_k ? *method.clip_k : layer->clip_k,
                           method.clip_v ? *method.clip_v : layer->clip_v);
  }
  return out;
}

}  // namespace kv2
