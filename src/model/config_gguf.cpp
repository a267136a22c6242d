// SPDX-License-Identifier: Apache-2.0
// ModelConfig from GGUF metadata. Keys: <architecture>.block_count, .attention.head_count, … Optional keys
// have the defaults that GGUF's own specification gives them.
#include <algorithm>
#include <limits>

#include "base/check.h"
#include "model/arch.h"

namespace kv2 {
namespace {

/// The keys "<architecture>.…" of one file.
class Keys {
 public:
  Keys(const GgufFile& file, std::string arch) : file_(file), arch_(std::move(arch)) {}

  std::string full(const char* key) const { return arch_ + "." + key; }

  int required(const char* key) const { return narrow(key, file_.integer(full(key))); }
  std::optional<int64_t> find(const char* key) const { return file_.find_integer(full(key)); }
  std::optional<double> number(const char* key) const { return file_.find_number(full(key)); }

  /// An integer, or an array of one equal value per layer (some converters write that).
  std::optional<int> uniform(const char* key, int n_layers) const {
    const GgufValue* value = file_.find_key(full(key));
    if (value == nullptr) return std::nullopt;
    if (!std::holds_alternative<std::vector<int64_t>>(value->value)) return required(key);
    const auto& list = std::get<std::vector<int64_t>>(value->value);
    if (static_cast<int64_t>(list.size()) != n_layers)
      throw_error(ErrorCode::BadFile, "{} has {} values for {} layers", full(key), list.size(), n_layers);
    for (int64_t v : list)
      if (v != list[0])
        throw_error(ErrorCode::Unsupported,
                    "{} differs between layers ({} and {}); supported is one value for all", full(key),
                    list[0], v);
    return narrow(key, list[0]);
  }

 private:
  int narrow(const char* key, int64_t value) const {
    if (value < 0 || value > std::numeric_limits<int32_t>::max())
      throw_error(ErrorCode::BadFile, "{} is {}, which is out of range", full(key), value);
    return static_cast<int>(value);
  }

  const GgufFile& file_;
  std::string arch_;
};

void refuse_what_is_not_computed(const Keys& keys, int64_t context) {
  if (const auto experts = keys.find("expert_count"); experts && *experts > 0)
    throw_error(ErrorCode::Unsupported,
                "{} is {}: mixture-of-experts models are not supported, dense ones are",
                keys.full("expert_count"), *experts);
  if (const auto window = keys.find("attention.sliding_window"); window && *window > 0 && *window < context)
    throw_error(ErrorCode::Unsupported,
                "{} is {}: sliding-window attention is not supported, full attention is",
                keys.full("attention.sliding_window"), *window);
}

void read_rope(const GgufFile& file, const Keys& keys, ModelConfig* c) {
  RopeConfig& rope = c->rope;
  rope.theta = keys.number("rope.freq_base").value_or(10000.0);
  if (const auto n = keys.find("rope.dimension_count"); n && *n != c->head_dim)
    throw_error(ErrorCode::Unsupported,
                "{} is {} and head_dim {}: partial rotary embeddings are not supported",
                keys.full("rope.dimension_count"), *n, c->head_dim);
  const std::string* type = file.find_string(keys.full("rope.scaling.type"));
  const auto factor = keys.number("rope.scaling.factor"), old_factor = keys.number("rope.scale_linear");
  if (type != nullptr && *type != "none" && *type != "linear")
    throw_error(ErrorCode::Unsupported,
                "{} is '{}'; supported are none, linear, and llama3 through rope_freqs.weight",
                keys.full("rope.scaling.type"), *type);
  const bool linear = type != nullptr ? *type == "linear" : (factor || old_factor);
  if (linear) {
    rope.scaling = RopeConfig::Scaling::Linear;
    rope.factor = factor ? *factor : old_factor.value_or(1.0);
    if (rope.factor == 0) rope.factor = 1;  // written by converters for "none"
  }
  const TensorInfo* freqs = file.find("rope_freqs.weight");
  if (freqs == nullptr) return;
  if (freqs->shape != std::vector<int64_t>{c->head_dim / 2})
    throw_error(ErrorCode::BadFile, "rope_freqs.weight: expected [{}], file has [{}]", c->head_dim / 2,
                fmt::join(freqs->shape, ", "));
  rope.frequency_factors.resize(c->head_dim / 2);
  file.read_rows(*freqs, 0, c->head_dim / 2, rope.frequency_factors.data());
}

void read_special_tokens(const GgufFile& file, ModelConfig* c) {
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    const auto id = file.find_integer(key);
    if (!id) continue;
    if (*id < 0 || *id >= c->vocab)
      throw_error(ErrorCode::BadFile, "{} is {}, outside the vocabulary of {} tokens", key, *id, c->vocab);
    if (std::find(c->eos.begin(), c->eos.end(), *id) == c->eos.end())
      c->eos.push_back(static_cast<int32_t>(*id));
  }
  if (const auto bos = file.find_integer("tokenizer.ggml.bos_token_id")) {
    if (*bos < 0 || *bos >= c->vocab)
      throw_error(ErrorCode::BadFile,
                  "tokenizer.ggml.bos_token_id is {}, outside the vocabulary of {} tokens", *bos, c->vocab);
    c->bos = static_cast<int32_t>(*bos);
  }
}

/// Biases have no key in GGUF: the tensors themselves say it.
void read_biases(const GgufFile& file, const ArchitectureRow& row, ModelConfig* c) {
  c->qkv_bias = row.always_qkv_bias || file.find("blk.0.attn_q.bias") != nullptr;
  c->output_bias = file.find("blk.0.attn_output.bias") != nullptr;
}

}  // namespace

ModelConfig ModelConfig::from_gguf(const GgufFile& file) {
  const std::string& arch = file.string("general.architecture");
  const auto rows = architectures();
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const auto* r) { return arch == r->gguf_name; });
  if (found == rows.end())
    throw_error(ErrorCode::Unsupported, "{}: architecture '{}' is not supported; supported are {}",
                file.name(), arch, known_gguf_architectures());
  const ArchitectureRow& row = **found;
  const Keys keys(file, arch);

  ModelConfig c;
  c.architecture = row.id;
  const std::string* name = file.find_string("general.name");
  c.name = name != nullptr ? *name : arch;
  c.n_layers = keys.required("block_count");
  c.hidden = keys.required("embedding_length");
  const auto heads = keys.uniform("attention.head_count", c.n_layers);
  if (!heads) throw_error(ErrorCode::BadFile, "{} is missing", keys.full("attention.head_count"));
  c.n_heads = *heads;
  c.n_kv_heads = keys.uniform("attention.head_count_kv", c.n_layers).value_or(c.n_heads);
  const auto intermediate = keys.uniform("feed_forward_length", c.n_layers);
  if (!intermediate) throw_error(ErrorCode::BadFile, "{} is missing", keys.full("feed_forward_length"));
  c.intermediate = *intermediate;
  c.context = file.integer(keys.full("context_length"));
  if (c.n_heads < 1)
    throw_error(ErrorCode::BadFile, "{} is {}", keys.full("attention.head_count"), c.n_heads);
  const auto key_length = keys.find("attention.key_length"),
             value_length = keys.find("attention.value_length");
  if (!key_length && c.hidden % c.n_heads != 0)
    throw_error(ErrorCode::BadFile, "embedding_length {} is no multiple of head_count {} and there is no {}",
                c.hidden, c.n_heads, keys.full("attention.key_length"));
  const int64_t head_dim = key_length.value_or(c.hidden / c.n_heads);
  if (head_dim < 1 || head_dim > 256)
    throw_error(ErrorCode::Unsupported, "head_dim is {}, supported are multiples of 16 up to 256", head_dim);
  if (value_length.value_or(head_dim) != head_dim)
    throw_error(ErrorCode::Unsupported,
                "keys have {} channels and values {}: different sizes are not supported", head_dim,
                *value_length);
  c.head_dim = static_cast<int>(head_dim);
  c.rms_epsilon = static_cast<float>(file.number(keys.full("attention.layer_norm_rms_epsilon")));

  const TensorInfo* embedding = file.find("token_embd.weight");
  if (embedding == nullptr) throw_error(ErrorCode::BadFile, "{}: token_embd.weight is missing", file.name());
  if (embedding->shape.size() != 2 || embedding->shape[0] > std::numeric_limits<int32_t>::max())
    throw_error(ErrorCode::BadFile, "token_embd.weight: expected [vocabulary, {}], file has [{}]", c.hidden,
                fmt::join(embedding->shape, ", "));
  c.vocab = static_cast<int>(embedding->shape[0]);
  c.tied_embeddings = file.find("output.weight") == nullptr;
  c.qk_norm = row.qk_norm;
  c.rope.pairing = row.gguf_pairing;
  refuse_what_is_not_computed(keys, c.context);
  read_biases(file, row, &c);
  read_rope(file, keys, &c);
  read_special_tokens(file, &c);
  check_config(c);
  return c;
}

}  // namespace kv2
