// SPDX-License-Identifier: Apache-2.0
// The explicit table of architectures and the tensor names that they share.
#include "model/arch.h"

#include <array>

namespace kv2 {

const char* name_of(Architecture a) {
  for (const ArchitectureRow* row : architectures())
    if (row->id == a) return row->gguf_name;
  return "unknown";
}

std::span<const ArchitectureRow* const> architectures() {
  static constexpr std::array<const ArchitectureRow*, 3> kRows{&kLlama, &kQwen2, &kQwen3};
  return kRows;
}

namespace {
template <class NameOf>
std::string joined(NameOf name_of_row) {
  std::string text;
  for (const ArchitectureRow* row : architectures()) {
    if (!text.empty()) text += ", ";
    text += name_of_row(*row);
  }
  return text;
}
}  // namespace

std::string known_gguf_architectures() {
  return joined([](const ArchitectureRow& r) { return r.gguf_name; });
}
std::string known_hf_classes() {
  return joined([](const ArchitectureRow& r) { return r.hf_class; });
}

const TensorNames& gguf_names() {
  static const TensorNames names{
      .layer_prefix = "blk.{}.",
      .embedding = "token_embd",
      .final_norm = "output_norm",
      .lm_head = "output",
      .attention_norm = "attn_norm",
      .q = "attn_q",
      .k = "attn_k",
      .v = "attn_v",
      .o = "attn_output",
      .q_norm = "attn_q_norm",
      .k_norm = "attn_k_norm",
      .mlp_norm = "ffn_norm",
      .gate = "ffn_gate",
      .up = "ffn_up",
      .down = "ffn_down",
      // rope_freqs.weight is read into the config; attn_rot_embd is an old copy of it
      .ignored = {"rope_freqs.weight", "attn_rot_embd.weight"}};
  return names;
}

const TensorNames& hf_names() {
  static const TensorNames names{.layer_prefix = "model.layers.{}.",
                                 .embedding = "model.embed_tokens",
                                 .final_norm = "model.norm",
                                 .lm_head = "lm_head",
                                 .attention_norm = "input_layernorm",
                                 .q = "self_attn.q_proj",
                                 .k = "self_attn.k_proj",
                                 .v = "self_attn.v_proj",
                                 .o = "self_attn.o_proj",
                                 .q_norm = "self_attn.q_norm",
                                 .k_norm = "self_attn.k_norm",
                                 .mlp_norm = "post_attention_layernorm",
                                 .gate = "mlp.gate_proj",
                                 .up = "mlp.up_proj",
                                 .down = "mlp.down_proj",
                                 .ignored = {"rotary_emb.inv_freq"}};
  return names;
}

}  // namespace kv2
