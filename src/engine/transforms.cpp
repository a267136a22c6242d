// SPDX-License-Identifier: Apache-2.0
#include "engine/transforms.h"

#include "base/check.h"
#include "quant/feedback/factors.h"
#include "quant/gauss/allocate.h"
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
  require_shape(*calibration, shape);
}

void check_size(const std::vector<float>& statistic, const char* name, int layer, const KvShape& shape) {
  const size_t wanted = static_cast<size_t>(shape.n_kv_heads) * shape.head_dim * shape.head_dim;
  if (statistic.size() != wanted)
    throw_error(ErrorCode::BadFile, "calibration: layer {}: {} has {} values, expected {}", layer, name,
                statistic.size(), wanted);
}

Transform rotation(const std::vector<float>& statistic, const char* name, int layer, const Method& method,
                   const KvShape& shape) {
  check_size(statistic, name, layer, shape);
  return calibrated_transform(statistic, shape.n_kv_heads, shape.head_dim, method.recipe, method.sharing);
}

/// Of keys as they are stored: centred or not.
std::vector<float> key_covariance(const LayerCalibration& c, const Method& method, const KvShape& shape) {
  std::vector<float> out = c.k_cov;
  if (method.centring == Centring::Off) return out;
  const size_t d = shape.head_dim;
  for (size_t h = 0; h < static_cast<size_t>(shape.n_kv_heads); h++)
    for (size_t i = 0; i < d; i++)
      for (size_t j = 0; j < d; j++) out[(h * d + i) * d + j] -= c.k_mean[h * d + i] * c.k_mean[h * d + j];
  return out;
}

Transform key_transform(const LayerCalibration& c, int layer, const Method& method, const KvShape& shape) {
  const size_t width = static_cast<size_t>(shape.n_kv_heads) * shape.head_dim;
  if (method.centring == Centring::Keys && c.k_mean.size() != width)
    throw_error(ErrorCode::BadFile, "calibration: layer {}: k_mean has {} values, expected {}", layer,
                c.k_mean.size(), width);
  Transform out;
  if (method.whiten_k > 0) {
    check_size(c.k_cov, "k_cov", layer, shape);
    out = whitened_transform(key_covariance(c, method, shape), shape.n_kv_heads, shape.head_dim,
                             method.recipe, method.sharing, method.whiten_k);
  } else {
    out = rotation(c.c_q, "c_q", layer, method, shape);
  }
  if (method.centring == Centring::Keys) out.mean = c.k_mean;
  return out;
}

Transform value_transform(const LayerCalibration& c, int layer, const Method& method, const KvShape& shape) {
  if (method.whiten_v == 0)
    return rotation(value_statistic(c, method.value_target), "the value statistic", layer, method, shape);
  check_size(c.v_cov, "v_cov", layer, shape);
  return whitened_transform(c.v_cov, shape.n_kv_heads, shape.head_dim, method.recipe, method.sharing,
                            method.whiten_v);
}

/// What the coder `feedback` needs: queries read keys, so their metric is C_Q; W_o reads values.
LayerFactors factors(const LayerCalibration& c, int layer, const Method& m, const LayerTransforms& t,
                     const PageLayout& layout) {
  const KvShape& shape = layout.shape;
  const LayerLayout& part = layout.layer(layer);
  LayerFactors out;
  if (part.rounded) return out;
  if (m.coder_k() == CoderKind::Feedback) {
    check_size(c.c_q, "c_q", layer, shape);
    out.k = fit_feedback(c.c_q, t.k, part.k.group, m.damp);
  }
  if (m.coder_v() == CoderKind::Feedback) {
    check_size(c.metric_v, "metric_v", layer, shape);
    out.v = fit_feedback(c.metric_v, t.v, part.v.group, m.damp);
  }
  return out;
}

LayerTransforms transforms(const LayerCalibration* c, int layer, const Method& method, const KvShape& shape) {
  if (method.transform == TransformKind::Calibrated)
    return {key_transform(*c, layer, method, shape), value_transform(*c, layer, method, shape)};
  const Transform none = identity_transform(shape.n_kv_heads, shape.head_dim);
  if (method.transform == TransformKind::Identity) return {none, none};
  const Transform h = method.transform == TransformKind::SignedHadamard
                          ? signed_hadamard_transform(shape.n_kv_heads, shape.head_dim)
                          : hadamard_transform(shape.n_kv_heads, shape.head_dim, method.hadamard_block);
  const TransformSides sides = method.transform_sides;
  return {sides == TransformSides::Values ? none : h, sides == TransformSides::Keys ? none : h};
}

/// Bits and spreads of the channels of every KV head, from the energy of keys.
std::vector<float> key_tables(const LayerCalibration& c, int layer, const PageLayout& layout) {
  const KvShape& shape = layout.shape;
  check_size(c.k_cov, "k_cov", layer, shape);
  if (layout.layer(layer).k.codec != CodecId::RopeBlocks) return {};
  const size_t d = static_cast<size_t>(shape.head_dim);
  std::vector<float> out, energies(d);
  for (size_t h = 0; h < static_cast<size_t>(shape.n_kv_heads); h++) {
    for (size_t i = 0; i < d; i++) energies[i] = c.k_cov[(h * d + i) * d + i];
    const std::vector<float> head = gauss::rope_block_tables(energies, layout.layer(layer).k.bits);
    out.insert(out.end(), head.begin(), head.end());
  }
  return out;
}

}  // namespace

void require_shape(const Calibration& calibration, const KvShape& shape) {
  if (static_cast<int>(calibration.layers.size()) != shape.n_layers ||
      calibration.n_kv_heads != shape.n_kv_heads || calibration.head_dim != shape.head_dim)
    throw_error(ErrorCode::Mismatch,
                "the calibration is for {} layers, {} KV heads and head_dim {}, the model has {}, {} and {}; "
                "make one with: kv2 "
                "calibrate MODEL",
                calibration.layers.size(), calibration.n_kv_heads, calibration.head_dim, shape.n_layers,
                shape.n_kv_heads, shape.head_dim);
}

void require_turned_values(std::span<const CacheSpec> specs) {
  if (std::any_of(specs.begin(), specs.end(), [](const CacheSpec& s) { return s.method.turns_values(); }))
    return;
  throw_error(ErrorCode::BadArgument,
              "{} stores V in the model's own basis, so W_o has nothing to absorb; quarot2, oscar2, kv2 and "
              "others that turn V do",
              specs.empty() ? "bf16" : specs.front().method_text());
}

FittedMethod fit_method(const CacheSpec& spec, const KvShape& shape, const Calibration* calibration) {
  const Method& method = spec.method;
  FittedMethod out;
  if (!method.quantized()) return out;
  if (method.needs_calibration()) check_calibration(spec, shape, calibration);
  const PageLayout layout = PageLayout::of(spec, shape);
  for (int i = 0; i < shape.n_layers; i++) {
    const LayerCalibration* layer = method.needs_calibration() ? &calibration->layers[i] : nullptr;
    const LayerTransforms t = transforms(layer, i, method, shape);
    if (method.k.codec == CodecId::RopeBlocks) out.k_tables.push_back(key_tables(*layer, i, layout));
    if (method.coder == CoderKind::Feedback) out.factors.push_back(factors(*layer, i, method, t, layout));
    if (method.transform != TransformKind::Identity) out.transforms.push_back(t);
    out.clips.emplace_back(method.clip_k ? *method.clip_k : layer->clip_k,
                           method.clip_v ? *method.clip_v : layer->clip_v);
  }
  return out;
}

}  // namespace kv2
