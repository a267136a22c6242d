// SPDX-License-Identifier: Apache-2.0
// The table of architectures. A new one is one file with an ArchitectureRow (tensor names, deviations from
// the decoder) and one entry in arch.cpp.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace kv2 {

/// Tensor names of one file format. Names of layers stand for `prefix`.format(layer) + name + ".weight" /
/// ".bias".
struct TensorNames {
  const char* layer_prefix;  // "blk.{}."
  const char* embedding;     // without ".weight", as all below
  const char* final_norm;
  const char* lm_head;
  const char *attention_norm, *q, *k, *v, *o, *q_norm, *k_norm, *mlp_norm, *gate, *up, *down;
  std::vector<std::string> ignored;  // suffixes of tensors that hold nothing the decoder needs
};
const TensorNames& gguf_names();
const TensorNames& hf_names();

struct ArchitectureRow {
  Architecture id;
  const char* gguf_name;      // general.architecture
  const char* hf_class;       // config.json: architectures
  RopePairing gguf_pairing;   // which rows of q and k the converter to GGUF permuted
  bool always_qkv_bias;       // q, k and v have biases without any key saying so
  bool reads_attention_bias;  // config.json's attention_bias adds biases to q, k, v and o
  bool qk_norm;               // RMSNorm over head_dim on q and k before RoPE
};
extern const ArchitectureRow kLlama, kQwen2, kQwen3;

std::span<const ArchitectureRow* const> architectures();
/// "llama, qwen2, qwen3" or the names of the Hugging Face classes, for messages.
std::string known_gguf_architectures();
std::string known_hf_classes();

/// The bounds of every value; throws BadFile / Unsupported naming it. Both readers end with this.
void check_config(const ModelConfig& config);

}  // namespace kv2
