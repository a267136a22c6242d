// SPDX-License-Identifier: Apache-2.0
// Qwen 2 and 2.5: q, k and v always have biases, o never; no key of config.json says so.
#include "model/arch.h"

namespace kv2 {

const ArchitectureRow kQwen2{.id = Architecture::Qwen2,
                             .gguf_name = "qwen2",
                             .hf_class = "Qwen2ForCausalLM",
                             .gguf_pairing = RopePairing::Halves,
                             .always_qkv_bias = true,
                             .reads_attention_bias = false,
                             .qk_norm = false};

}  // namespace kv2
