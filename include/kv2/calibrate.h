// SPDX-License-Identifier: Apache-2.0
// Calibration: what a model's attention consumes, measured once on a little text, and the clips searched with
// it. Everything a method is fitted from is here, so that one file serves all of them. Immutable after
// loading.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kv2 {

/// Statistics of one layer. Matrices are row-major [n_kv_heads, head_dim, head_dim], vectors [n_kv_heads,
/// head_dim]. K is after RoPE and QK-norm unless a name says otherwise; all are un-rotated. Means of
/// products, not centred.
struct LayerCalibration {
  std::vector<float> c_q;  // mean q'q, the query heads of a KV head pooled (eq. of C_Q in 2605.17757)
  std::vector<float> c_s;  // mean o'o of the attention output before W_o = (1/N) V'S'SV
  std::vector<float>
      c_s_energy;  // mean w v'v with w = k M k' normalised to mean 1: the reference code's proxy
  std::vector<float> k_cov, k_mean;          // after RoPE
  std::vector<float> k_pre_cov, k_pre_mean;  // before RoPE
  std::vector<float> v_cov, v_mean;
  std::vector<float>
      metric_v;  // sum of W_o'W_o over the query heads of a KV head: what reads values; of the weights alone
  float clip_k = 0.96f, clip_v = 0.92f;  // ratios in (0, 1]
};

struct Calibration {
  static constexpr int kFormatVersion = 3;
  std::string model_fingerprint;  // of the model it was made for: weights, architecture, RoPE pairing
  int n_kv_heads = 0, head_dim = 0;
  int64_t n_tokens = 0;
  std::string text_hash;                     // of the calibration tokens
  std::map<std::string, std::string> notes;  // tool version, source of the text, seed, ...
  std::vector<LayerCalibration> layers;

  /// Writes one safetensors file with metadata, to a temporary name first and renamed when complete.
  void save(const std::string& path) const;
  /// Errors: BadFile (what was found, what is expected), Unsupported for another format version.
  static Calibration load(const std::string& path);
  /// Throws Mismatch naming both fingerprints unless this was made for that model.
  void require_model(const std::string& fingerprint) const;
};

}  // namespace kv2
