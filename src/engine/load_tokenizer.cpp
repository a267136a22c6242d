// SPDX-License-Identifier: Apache-2.0
// The tokenizer and the chat template of a model file: GGUF metadata, or tokenizer.json and
// tokenizer_config.json beside config.json. A model without a tokenizer that is supported still runs on token
// ids: the reason is returned.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/file.h"
#include "engine/engine.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"

namespace kv2 {
namespace {

constexpr size_t kMaxTokenizerBytes = size_t{256} << 20, kMaxConfigBytes = size_t{16} << 20;
constexpr const char* kPrefix = "tokenizer.ggml.";

std::string key(const char* name) {
  return std::string(kPrefix) + name;
}

int32_t token_id(const GgufFile& file, const char* name) {
  const std::optional<int64_t> id = file.find_integer(key(name));
  if (!id) return -1;
  if (*id < 0 || *id > INT32_MAX)
    throw_error(ErrorCode::BadFile, "{} is {}, which is no token id", key(name), *id);
  return static_cast<int32_t>(*id);
}

std::vector<TokenType> token_types(const GgufFile& file) {
  std::vector<TokenType> types;
  const std::optional<std::vector<int64_t>> numbers = file.find_integers(key("token_type"));
  if (!numbers) return types;
  for (const int64_t n : *numbers) {
    if (n < 1 || n > 6)
      throw_error(ErrorCode::BadFile, "{} has the type {}; types are 1 to 6", key("token_type"), n);
    types.push_back(static_cast<TokenType>(n));
  }
  return types;
}

TokenizerSpec spec_of(const GgufFile& file) {
  TokenizerSpec spec;
  const std::string& model = file.string(key("model"));
  if (model != "gpt2" && model != "llama")
    throw_error(ErrorCode::Unsupported,
                "tokenizer model \"{}\" is not supported; supported are gpt2 and llama", model);
  spec.kind = model == "gpt2" ? TokenizerKind::ByteLevelBpe : TokenizerKind::SentencePiece;
  if (const std::string* pre = file.find_string(key("pre"))) spec.pre = *pre;
  if (const auto* tokens = file.find_strings(key("tokens"))) spec.tokens = *tokens;
  if (const auto* merges = file.find_strings(key("merges"))) spec.merges = *merges;
  if (const auto scores = file.find_numbers(key("scores")))
    for (const double s : *scores) spec.scores.push_back(static_cast<float>(s));
  spec.types = token_types(file);
  spec.bos = token_id(file, "bos_token_id");
  spec.eos = token_id(file, "eos_token_id");
  spec.unk = token_id(file, "unknown_token_id");
  // what a file leaves out is what the family does: SentencePiece models and Llama 3 begin with bos
  const bool bos_by_default = spec.kind == TokenizerKind::SentencePiece || spec.pre == "llama-bpe" ||
                              spec.pre == "llama3" || spec.pre == "llama-v3";
  spec.add_bos = file.find_bool(key("add_bos_token")).value_or(bos_by_default && spec.bos >= 0);
  spec.add_eos = file.find_bool(key("add_eos_token")).value_or(false);
  spec.add_space_prefix = file.find_bool(key("add_space_prefix")).value_or(true);
  return spec;
}

std::string path_in(const HfDirectory& directory, const char* name) {
  return (std::filesystem::path(directory.path()) / name).string();
}

/// The text of a file of the directory, "" when it is absent.
std::string read_if_there(const HfDirectory& directory, const char* name, size_t max_bytes) {
  const std::string path = path_in(directory, name);
  std::error_code ec;
  return std::filesystem::exists(path, ec) ? read_file(path, max_bytes) : std::string();
}

std::unique_ptr<Tokenizer> tokenizer_of(const HfDirectory& directory) {
  const std::string json = read_if_there(directory, "tokenizer.json", kMaxTokenizerBytes);
  if (json.empty()) throw_error(ErrorCode::Unsupported, "{} has no tokenizer.json", directory.path());
  return Tokenizer::from_json(json, read_if_there(directory, "tokenizer_config.json", kMaxConfigBytes));
}

/// tokenizer_config.json: a text, or a list of {"name", "template"} of which "default" counts.
std::string inline_template(const std::string& config) {
  const nlohmann::json root = nlohmann::json::parse(config, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object() || !root.contains("chat_template")) return {};
  const nlohmann::json& value = root["chat_template"];
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return {};
  for (const nlohmann::json& row : value)
    if (row.is_object() && row.value("name", nlohmann::json()) == "default" && row.contains("template") &&
        row["template"].is_string())
      return row["template"].get<std::string>();
  return {};
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const TensorFile& file, std::string* why_not) {
  try {
    if (const auto* gguf = dynamic_cast<const GgufFile*>(&file)) {
      if (!gguf->find_key(key("model"))) throw_error(ErrorCode::Unsupported, "the file has no tokenizer");
      return std::make_unique<Tokenizer>(spec_of(*gguf));
    }
    if (const auto* directory = dynamic_cast<const HfDirectory*>(&file)) return tokenizer_of(*directory);
    throw_error(ErrorCode::Unsupported, "a {} has no tokenizer", file.kind());
  } catch (const Error& e) {
    if (e.code() == ErrorCode::Bug) throw;
    if (why_not) *why_not = e.what();
    return nullptr;
  }
}

std::string load_chat_template(const TensorFile& file) {
  if (const auto* gguf = dynamic_cast<const GgufFile*>(&file)) {
    const std::string* jinja = gguf->find_string("tokenizer.chat_template");
    return jinja ? *jinja : std::string();
  }
  const auto* directory = dynamic_cast<const HfDirectory*>(&file);
  if (!directory) return {};
  std::string jinja = read_if_there(*directory, "chat_template.jinja", kMaxConfigBytes);
  if (!jinja.empty()) return jinja;
  return inline_template(read_if_there(*directory, "tokenizer_config.json", kMaxConfigBytes));
}

}  // namespace kv2
