// SPDX-License-Identifier: Apache-2.0
// The fingerprint of a model: XXH3-128 over a canonical text of its configuration (RoPE and its pairing
// included, since GGUF permutes the rows of q and k) and over every tensor's name, type, shape and encoded
// bytes, by name.
#include <algorithm>

#include "base/check.h"
#include "base/hash.h"
#include "model/model_impl.h"

namespace kv2 {
namespace {

std::string canonical_text(const ModelConfig& c) {
  const RopeConfig& r = c.rope;
  return fmt::format(
      "kv2 model 1\narchitecture {}\nlayers {} hidden {} heads {} kv_heads {} head_dim {} intermediate {} "
      "vocab {}\n"
      "rms_epsilon {:a}\nrope theta {:a} pairing {} scaling {} factor {:a} low {:a} high {:a} original {}\n"
      "qkv_bias {} output_bias {} qk_norm {} tied {}\n",
      name_of(c.architecture), c.n_layers, c.hidden, c.n_heads, c.n_kv_heads, c.head_dim, c.intermediate,
      c.vocab, static_cast<double>(c.rms_epsilon), r.theta,
      r.pairing == RopePairing::Adjacent ? "adjacent" : "halves", static_cast<int>(r.scaling), r.factor,
      r.low_frequency_factor, r.high_frequency_factor, r.original_context, c.qkv_bias, c.output_bias,
      c.qk_norm, c.tied_embeddings);
}

}  // namespace

std::string compute_fingerprint(const TensorFile& file, const ModelConfig& config) {
  Hash128 hash;
  hash.add_text(canonical_text(config));
  std::vector<const TensorInfo*> tensors;
  for (const TensorInfo& t : file.tensors()) tensors.push_back(&t);
  std::sort(tensors.begin(), tensors.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  for (const TensorInfo* t : tensors) {
    hash.add_text(fmt::format("{} {} [{}]", t->name, t->type, fmt::join(t->shape, ",")));
    hash.add(file.raw(*t));
    file.forget();  // else reading it all would leave it all in memory
  }
  return fmt::format("{}-{}", name_of(config.architecture), hash.hex());
}

}  // namespace kv2
