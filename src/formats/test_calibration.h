// SPDX-License-Identifier: Apache-2.0
// A small calibration with other values everywhere, for tests and fuzz seeds.
#pragma once

#include "kv2/calibrate.h"

namespace kv2::testing {

inline Calibration small_calibration(int n_kv_heads = 2, int head_dim = 3, int n_layers = 2) {
  Calibration c;
  c.model_fingerprint = "llama-0123456789abcdef";
  c.n_kv_heads = n_kv_heads;
  c.head_dim = head_dim;
  c.n_tokens = 4096;
  c.text_hash = "fedcba9876543210";
  c.notes = {{"source", "sampled from the model"}, {"seed", "1"}};
  float x = 0.25f;
  const auto fill = [&](std::vector<float>& v, int n) {
    for (int i = 0; i < n; i++) v.push_back(x += 0.5f);
  };
  const int vector = n_kv_heads * head_dim, matrix = vector * head_dim;
  for (int i = 0; i < n_layers; i++) {
    LayerCalibration l;
    for (auto* m : {&l.c_q, &l.c_s, &l.c_s_energy, &l.k_cov, &l.k_pre_cov, &l.v_cov, &l.metric_v})
      fill(*m, matrix);
    for (auto* v : {&l.k_mean, &l.k_pre_mean, &l.v_mean}) fill(*v, vector);
    l.clip_k = 0.96f - 0.01f * static_cast<float>(i);
    l.clip_v = i == 0 ? 1.0f : 0.9f;
    c.layers.push_back(std::move(l));
  }
  return c;
}

}  // namespace kv2::testing
