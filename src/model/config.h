// ModelConfig: what the decoder needs to know of an architecture, read from GGUF metadata or config.json.
// Every value is range-checked before anyone computes a size from it, so products of two dimensions fit in
// int32 and all sizes in int64. What the model has and kv2 does not compute (sliding windows, experts, yarn)
// is refused, never ignored.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "ops/params.h"

namespace kv2 {

enum class Architecture : uint8_t { Llama, Qwen2, Qwen3 };
const char* name_of(Architecture a);

struct RopeConfig {
  enum class Scaling : uint8_t { None, Linear, Llama3 };
  double theta = 10000;
  RopePairing pairing = RopePairing::Halves;
  Scaling scaling = Scaling::None;
  double factor = 1, low_frequency_factor = 1, high_frequency_factor = 4;
  int64_t original_context = 0;
  std::vector<float>
      frequency_factors;  // GGUF's rope_freqs.weight [head_dim/2]: inv_frequency is divided by it

  std::vector<float> inv_frequency(int head_dim) const;  // [head_dim / 2], scaling applied
};

struct ModelConfig {
  Architecture architecture = Architecture::Llama;
  std::string name;  // for people
  int n_layers = 0, hidden = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, intermediate = 0, vocab = 0;
  int64_t context = 0;  // positions the model was trained for
  float rms_epsilon = 1e-5f;
  RopeConfig rope;
  bool qkv_bias = false, output_bias = false /* of W_o */, qk_norm = false, tied_embeddings = false;
  std::vector<int32_t> eos;  // every id that ends a text
  int32_t bos = -1;

  KvShape kv_shape() const { return {n_layers, n_heads, n_kv_heads, head_dim}; }
  int qkv_width() const { return (n_heads + 2 * n_kv_heads) * head_dim; }
  /// Throws BadFile / Unsupported with the key, what was found and what is supported.
  static ModelConfig from_gguf(const GgufFile& file);
  static ModelConfig from_hf(const HfDirectory& directory);
};

}  // namespace kv2
