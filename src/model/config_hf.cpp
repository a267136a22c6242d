// SPDX-License-Identifier: Apache-2.0
// ModelConfig from config.json and generation_config.json of a Hugging Face directory. Both generations of
// keys are read: rope_theta + rope_scaling, and rope_parameters. Absent keys have the defaults of the
// reference classes.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "model/arch.h"

namespace kv2 {
namespace {

using Json = nlohmann::json;

Json parse_object(const std::string& text, const char* file) {
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object())
    throw_error(ErrorCode::BadFile, "{}: not a JSON object", file);
  return json;
}

const Json* find(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it == json.end() || it->is_null() ? nullptr : &*it;
}

int64_t to_integer(const Json& value, const char* key) {
  const bool fits = value.is_number_integer() && (!value.is_number_unsigned() ||
                                                  value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  if (!fits)
    throw_error(ErrorCode::BadFile, "config.json: {} is {}, expected an integer", key,
                value.dump().substr(0, 60));
  return value.get<int64_t>();
}

std::optional<int64_t> find_integer(const Json& json, const char* key) {
  const Json* value = find(json, key);
  return value == nullptr ? std::nullopt : std::optional(to_integer(*value, key));
}

int required_int(const Json& json, const char* key) {
  const auto value = find_integer(json, key);
  if (!value) throw_error(ErrorCode::BadFile, "config.json: {} is missing", key);
  if (*value < 0 || *value > std::numeric_limits<int32_t>::max())
    throw_error(ErrorCode::BadFile, "config.json: {} is {}, which is out of range", key, *value);
  return static_cast<int>(*value);
}

std::optional<double> find_number(const Json& json, const char* key) {
  const Json* value = find(json, key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number())
    throw_error(ErrorCode::BadFile, "config.json: {} is {}, expected a number", key,
                value->dump().substr(0, 60));
  return value->get<double>();
}

bool flag(const Json& json, const char* key, bool otherwise) {
  const Json* value = find(json, key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean())
    throw_error(ErrorCode::BadFile, "config.json: {} is {}, expected true or false", key,
                value->dump().substr(0, 60));
  return value->get<bool>();
}

std::string text_of(const Json& json, const char* key) {
  const Json* value = find(json, key);
  if (value == nullptr) return {};
  if (!value->is_string())
    throw_error(ErrorCode::BadFile, "config.json: {} is {}, expected a string", key,
                value->dump().substr(0, 60));
  return value->get<std::string>();
}

const ArchitectureRow& find_row(const Json& json) {
  const Json* list = find(json, "architectures");
  const bool one_name = list != nullptr && list->is_array() && list->size() == 1 && list->front().is_string();
  if (!one_name)
    throw_error(ErrorCode::BadFile,
                "config.json: 'architectures' must be a list of one class; supported are {}",
                known_hf_classes());
  const std::string name = list->front().get<std::string>();
  for (const ArchitectureRow* row : architectures())
    if (name == row->hf_class) return *row;
  throw_error(ErrorCode::Unsupported, "config.json: architecture '{}' is not supported; supported are {}",
              name, known_hf_classes());
}

void refuse_what_is_not_computed(const Json& json, const ModelConfig& c) {
  if (const std::string act = text_of(json, "hidden_act"); !act.empty() && act != "silu" && act != "swish")
    throw_error(ErrorCode::Unsupported, "config.json: hidden_act is '{}', supported is silu", act);
  if (flag(json, "mlp_bias", false))
    throw_error(ErrorCode::Unsupported, "config.json: mlp_bias is true: biases in the MLP are not supported");
  if (find_number(json, "partial_rotary_factor").value_or(1.0) != 1.0)
    throw_error(ErrorCode::Unsupported, "config.json: partial rotary embeddings are not supported");
  if (const Json* q = find(json, "quantization_config"); q != nullptr)
    throw_error(ErrorCode::Unsupported,
                "config.json: quantization_config: quantized Hugging Face weights are not supported; use the "
                "F32, F16 or BF16 "
                "weights, or a GGUF file");
  const Json* layers = find(json, "layer_types");
  if (layers != nullptr) {
    if (!layers->is_array()) throw_error(ErrorCode::BadFile, "config.json: layer_types is not a list");
    for (const Json& type : *layers)
      if (!type.is_string() || type.get<std::string>() != "full_attention")
        throw_error(ErrorCode::Unsupported,
                    "config.json: layer_types contains {}, supported is \"full_attention\"",
                    type.dump().substr(0, 60));
    return;  // the list is what the reference obeys
  }
  // Without the list: layers from max_window_layers on slide, where use_sliding_window says so.
  const auto window = find_integer(json, "sliding_window");
  if (window && *window > 0 && *window < c.context && flag(json, "use_sliding_window", false) &&
      find_integer(json, "max_window_layers").value_or(0) < c.n_layers)
    throw_error(ErrorCode::Unsupported,
                "config.json: sliding_window {} is used: sliding-window attention is not supported", *window);
}

void read_rope(const Json& json, ModelConfig* c) {
  RopeConfig& rope = c->rope;
  rope.pairing = RopePairing::Halves;
  const Json *parameters = find(json, "rope_parameters"), *scaling = find(json, "rope_scaling");
  if (parameters != nullptr && scaling != nullptr && *parameters != *scaling)
    throw_error(ErrorCode::BadFile,
                "config.json: rope_scaling and rope_parameters differ; remove the one that does not hold");
  if (parameters == nullptr) parameters = scaling;
  if (parameters != nullptr && !parameters->is_object())
    throw_error(ErrorCode::BadFile, "config.json: rope_scaling / rope_parameters is not an object");
  rope.theta = find_number(json, "rope_theta").value_or(10000.0);
  if (parameters == nullptr) return;
  rope.theta = find_number(*parameters, "rope_theta").value_or(rope.theta);
  if (find_number(*parameters, "partial_rotary_factor").value_or(1.0) != 1.0)
    throw_error(ErrorCode::Unsupported, "config.json: partial rotary embeddings are not supported");
  if (parameters->contains("full_attention") || parameters->contains("sliding_attention"))
    throw_error(ErrorCode::Unsupported, "config.json: rope_parameters per layer type are not supported");
  std::string type = text_of(*parameters, "rope_type");
  if (type.empty()) type = text_of(*parameters, "type");
  if (type.empty() || type == "default") return;
  if (type != "linear" && type != "llama3")
    throw_error(ErrorCode::Unsupported,
                "config.json: rope type '{}' is not supported; supported are default, linear, llama3", type);
  const auto factor = find_number(*parameters, "factor");
  if (!factor) throw_error(ErrorCode::BadFile, "config.json: rope type '{}' without a factor", type);
  rope.factor = *factor;
  if (type == "linear") {
    rope.scaling = RopeConfig::Scaling::Linear;
    return;
  }
  rope.scaling = RopeConfig::Scaling::Llama3;
  const auto low = find_number(*parameters, "low_freq_factor"),
             high = find_number(*parameters, "high_freq_factor");
  const auto original = find_integer(*parameters, "original_max_position_embeddings");
  if (!low || !high || !original)
    throw_error(ErrorCode::BadFile,
                "config.json: llama3 rope needs low_freq_factor, high_freq_factor and "
                "original_max_position_embeddings");
  rope.low_frequency_factor = *low;
  rope.high_frequency_factor = *high;
  rope.original_context = *original;
}

void add_eos(const Json& json, const char* file, ModelConfig* c) {
  const Json* value = find(json, "eos_token_id");
  if (value == nullptr) return;
  const auto add = [&](const Json& id) {
    const int64_t n = to_integer(id, "eos_token_id");
    if (n < 0 || n >= c->vocab)
      throw_error(ErrorCode::BadFile, "{}: eos_token_id {} is outside the vocabulary of {} tokens", file, n,
                  c->vocab);
    if (std::find(c->eos.begin(), c->eos.end(), n) == c->eos.end()) c->eos.push_back(static_cast<int32_t>(n));
  };
  if (!value->is_array()) return add(*value);
  if (value->size() > 1024) throw_error(ErrorCode::BadFile, "{}: {} eos tokens", file, value->size());
  for (const Json& id : *value) add(id);
}

/// generation_config.json's list wins where there is one (it is what the reference's generate obeys); both
/// count here.
void read_special_tokens(const Json& json, const std::string& generation_text, ModelConfig* c) {
  if (!generation_text.empty())
    add_eos(parse_object(generation_text, "generation_config.json"), "generation_config.json", c);
  add_eos(json, "config.json", c);
  if (const auto bos = find_integer(json, "bos_token_id")) {
    if (*bos < 0 || *bos >= c->vocab)
      throw_error(ErrorCode::BadFile, "config.json: bos_token_id {} is outside the vocabulary of {} tokens",
                  *bos, c->vocab);
    c->bos = static_cast<int32_t>(*bos);
  }
}

}  // namespace

ModelConfig ModelConfig::from_hf(const HfDirectory& directory) {
  const Json json = parse_object(directory.config_json(), "config.json");
  const ArchitectureRow& row = find_row(json);
  ModelConfig c;
  c.architecture = row.id;
  c.name = text_of(json, "_name_or_path");
  if (c.name.empty()) c.name = directory.path();
  c.n_layers = required_int(json, "num_hidden_layers");
  c.hidden = required_int(json, "hidden_size");
  c.n_heads = required_int(json, "num_attention_heads");
  c.n_kv_heads =
      find(json, "num_key_value_heads") != nullptr ? required_int(json, "num_key_value_heads") : c.n_heads;
  c.intermediate = required_int(json, "intermediate_size");
  c.context = required_int(json, "max_position_embeddings");
  c.vocab = required_int(json, "vocab_size");
  if (c.n_heads < 1) throw_error(ErrorCode::BadFile, "config.json: num_attention_heads is {}", c.n_heads);
  if (find(json, "head_dim") != nullptr) {
    c.head_dim = required_int(json, "head_dim");
  } else if (c.hidden % c.n_heads == 0) {
    c.head_dim = c.hidden / c.n_heads;
  } else {
    throw_error(
        ErrorCode::BadFile,
        "config.json: hidden_size {} is no multiple of num_attention_heads {} and there is no head_dim",
        c.hidden, c.n_heads);
  }
  c.rms_epsilon = static_cast<float>(find_number(json, "rms_norm_eps").value_or(1e-6));
  const bool attention_bias = row.reads_attention_bias && flag(json, "attention_bias", false);
  c.qkv_bias = row.always_qkv_bias || attention_bias;
  c.output_bias = attention_bias;
  c.qk_norm = row.qk_norm;
  c.tied_embeddings = flag(json, "tie_word_embeddings", false);
  read_rope(json, &c);
  refuse_what_is_not_computed(json, c);
  read_special_tokens(json, directory.generation_json(), &c);
  check_config(c);
  return c;
}

}  // namespace kv2
