// SPDX-License-Identifier: Apache-2.0
// Llama: the decoder as it stands. Converters to GGUF permute the rows of q and k so that RoPE pairs
// neighbours; Hugging Face files keep halves. attention_bias (rare) adds biases to q, k, v and o.
#include "model/arch.h"

namespace kv2 {

const ArchitectureRow kLlama{.id = Architecture::Llama,
                             .gguf_name = "llama",
                             .hf_class = "LlamaForCausalLM",
                             .gguf_pairing = RopePairing::Adjacent,
                             .always_qkv_bias = false,
                             .reads_attention_bias = true,
                             .qk_norm = false};

}  // namespace kv2
