// SPDX-License-Identifier: Apache-2.0
// The weights of a model on a backend. Every tensor's presence and shape is checked before anything is
// allocated; tensors are decoded row by row while they are packed, so no second copy of a matrix exists.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "formats/tensor_file.h"
#include "model/config.h"
#include "model/device_buffer.h"
#include "quant/transform.h"

namespace kv2 {

struct LayerWeights {
  DeviceBuffer attention_norm;      // [hidden]
  std::unique_ptr<Linear> qkv;      // hidden -> (n_heads + 2 n_kv_heads)·head_dim: rows of q, then k, then v
  DeviceBuffer q_norm, k_norm;      // [head_dim], with qk_norm
  std::unique_ptr<Linear> o;        // n_heads·head_dim -> hidden
  bool o_has_basis = false;         // o takes attention's output in V's stored basis (output_basis.h)
  DeviceBuffer mlp_norm;            // [hidden]
  std::unique_ptr<Linear> gate_up;  // hidden -> 2·intermediate: rows of gate, then up
  std::unique_ptr<Linear> down;     // intermediate -> hidden
};

struct ModelWeights {
  std::unique_ptr<Linear> embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  DeviceBuffer final_norm;          // [hidden]
  std::unique_ptr<Linear> lm_head;  // hidden -> vocab; the embedding's rows where tied

  size_t bytes() const;
};

/// Throws BadFile for a missing tensor or a wrong shape ("layer 17: attn_k.weight: expected [192, 576], file
/// has [192, 512]") before allocating, and Unsupported for biases that the decoder would ignore.
void check_tensors(const TensorFile& file, const ModelConfig& config);
/// Of a file that passed check_tensors.
ModelWeights load_weights(const TensorFile& file, const ModelConfig& config, Backend& backend);

/// Makes W_o of every layer again: for outputs of attention in V's stored basis where that has a decode
/// matrix, else as load_weights does. transforms: [n_layers], or empty for none anywhere. Of a file that
/// passed check_tensors. Errors: Unsupported where the backend would multiply the file's codes, which cannot
/// be transformed; nothing has changed then.
void load_output_projections(const TensorFile& file, const ModelConfig& config, Backend& backend,
                             std::span<const LayerTransforms> transforms, ModelWeights& weights);

/// Throws Unsupported where the backend would multiply W_o of any layer in the file's codes. Of a file that
/// passed check_tensors.
void require_float_outputs(const TensorFile& file, const ModelConfig& config, const Backend& backend);

/// W_o of a layer, decoded: out [hidden, n_heads·head_dim]. Of a file that passed check_tensors.
void read_output_projection(const TensorFile& file, const ModelConfig& config, int layer, float* out);

/// Device bytes of what load_weights makes. Of a file that passed check_tensors.
size_t plan_weight_bytes(const TensorFile& file, const ModelConfig& config, const Backend& backend);

}  // namespace kv2
