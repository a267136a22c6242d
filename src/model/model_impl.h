// SPDX-License-Identifier: Apache-2.0
// The inside of Model: file, config, weights and the scratch of one forward. One device allocation for all
// scratch; attention and MLP of a layer never live at the same time and share its second half.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/device_buffer.h"
#include "model/model.h"
#include "model/weights.h"

namespace kv2 {

/// Where the buffers of a forward lie in the scratch allocation, in floats, for `rows` rows.
struct ScratchPlan {
  ScratchPlan(const ModelConfig& config, const Backend& backend, int rows);

  int logit_tile = 0;                                  // rows of logits that exist at once on the device
  size_t x = 0, normed = 0;                            // [rows, hidden]
  size_t qkv = 0, q = 0, k = 0, v = 0, attention = 0;  // attention's part
  int mlp_rows = 0;                                    // rows that the MLP takes at once
  size_t gate_up = 0, activation = 0;                  // the MLP's part, over attention's: [mlp_rows, …]
  size_t last = 0, logits = 0;  // the head's part, over both: [tile, hidden], [tile, vocab]
  size_t n_floats = 0;
  int max_width = 0;  // the widest input of a linear

  size_t bytes() const { return n_floats * sizeof(float); }
};

struct Model::Impl {
  Backend& backend;
  std::unique_ptr<TensorFile> file;
  ModelConfig config;
  std::string fingerprint;
  int max_rows;
  ScratchPlan plan;
  ModelWeights weights;
  DeviceBuffer scratch;
  std::vector<float> inv_frequency;
  std::string value_bases;  // of the caches that W_o is for (value_bases_of); empty: any

  Impl(Backend& b, std::unique_ptr<TensorFile> f, int rows);
  void require_values_of(const KvCache& cache) const;
};

std::string compute_fingerprint(const TensorFile& file, const ModelConfig& config);

}  // namespace kv2
