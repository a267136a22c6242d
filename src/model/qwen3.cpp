// SPDX-License-Identifier: Apache-2.0
// Qwen 3: RMSNorm over head_dim on q and k before RoPE, and a head_dim that is not hidden / heads.
#include "model/arch.h"

namespace kv2 {

const ArchitectureRow kQwen3{.id = Architecture::Qwen3,
                             .gguf_name = "qwen3",
                             .hf_class = "Qwen3ForCausalLM",
                             .gguf_pairing = RopePairing::Halves,
                             .always_qkv_bias = false,
                             .reads_attention_bias = true,
                             .qk_norm = true};

}  // namespace kv2
