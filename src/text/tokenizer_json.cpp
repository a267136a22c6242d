// SPDX-License-Identifier: Apache-2.0
// tokenizer.json of Hugging Face's tokenizers -> TokenizerRecipe. BPE models only: byte-level (GPT-2, Llama
// 3, Qwen) and the ones converted from SentencePiece (merges, "▁", byte fallback). What would change ids and
// is not done is refused. Limits: 256 MiB of JSON, 32 levels deep.
#include <algorithm>
#include <unordered_map>

#include "base/check.h"
#include "text/json_pipeline.h"

namespace kv2 {
namespace {

using namespace json;

constexpr size_t kMaxJsonBytes = size_t{256} << 20, kMaxDepth = 32;
constexpr size_t kMaxHoles = 1 << 16;  // ids without a token

class Reader {
 public:
  explicit Reader(object root) : root_(root) {}

  TokenizerRecipe run(std::string_view config) {
    const object model = object_at(root_, "model", "the tokenizer");
    read_model(model);
    read_added();
    read_unknown(model);
    read_pipeline(root_, recipe_);
    if (!config.empty()) read_config(config);
    fill_holes();
    check_recipe(recipe_);
    return std::move(recipe_);
  }

 private:
  void place(int64_t id, std::string_view token, TokenType type) {
    if (id < 0 || id >= static_cast<int64_t>(kMaxTokens))
      throw_error(ErrorCode::BadFile, "token {} has the id {}; ids go from 0 to {}", shown(token), id,
                  kMaxTokens - 1);
    const auto i = static_cast<size_t>(id);
    if (i >= n_listed_ + kMaxHoles)
      throw_error(ErrorCode::BadFile, "token {} has the id {} in a vocabulary of {} tokens", shown(token), id,
                  n_listed_);
    if (i >= recipe_.tokens.size()) {
      recipe_.tokens.resize(i + 1);
      recipe_.types.resize(i + 1, TokenType::Unused);
    }
    std::string& place = recipe_.tokens[i];
    if (!place.empty() && place != token)
      throw_error(ErrorCode::BadFile, "id {} is given to {} and to {}", id, shown(place), shown(token));
    place = token;
    recipe_.types[i] = type;
  }

  void read_model(object model) {
    const std::string_view type = text_or(model, "type", "BPE");  // old files do not name it
    if (type != "BPE")
      throw_error(ErrorCode::Unsupported, "tokenizer model {} is not supported; supported is BPE",
                  shown(type));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!text_or(model, key, "").empty())
        throw_error(ErrorCode::Unsupported, "a BPE tokenizer with {} {} is not supported", key,
                    shown(text_or(model, key, "")));
    double dropout = 0;
    if (at(model, "dropout").get(dropout) == simdjson::SUCCESS && dropout != 0)
      throw_error(ErrorCode::Unsupported,
                  "a BPE tokenizer with dropout {} is not supported: its tokens are random", dropout);
    recipe_.last_merge_wins = true;
    recipe_.ignore_merges = flag(model, "ignore_merges", false);
    recipe_.fuse_unknown = flag(model, "fuse_unk", false);
    byte_fallback_ = flag(model, "byte_fallback", false);
    read_vocabulary(object_at(model, "vocab", "the BPE model"));
    read_merges(model);
  }

  void read_vocabulary(object vocab) {
    array added;
    n_listed_ = vocab.size();  // saturates at 2^24 - 1, the most that is supported anyway
    if (at(root_, "added_tokens").get(added) == simdjson::SUCCESS) n_listed_ += added.size();
    if (vocab.size() == 0) throw_error(ErrorCode::BadFile, "the vocabulary is empty");
    ids_.reserve(vocab.size());
    for (const auto [token, value] : vocab) {
      int64_t id = 0;
      if (value.get(id) != simdjson::SUCCESS)
        throw_error(ErrorCode::BadFile, "the id of token {} is no integer", shown(token));
      const bool byte = byte_fallback_ && byte_token_value(token) >= 0;
      place(id, token, byte ? TokenType::Byte : TokenType::Normal);
      if (!ids_.emplace(token, static_cast<int32_t>(id)).second)
        throw_error(ErrorCode::BadFile, "the vocabulary has {} twice", shown(token));
    }
  }

  int32_t id_of(std::string_view token, size_t rank) const {
    const auto it = ids_.find(token);
    if (it == ids_.end())
      throw_error(ErrorCode::BadFile, "merge {} needs the token {}, which the vocabulary does not have", rank,
                  shown(token));
    return it->second;
  }

  void read_merges(object model) {
    array merges;
    if (at(model, "merges").get(merges) != simdjson::SUCCESS || merges.begin() == merges.end())
      throw_error(ErrorCode::BadFile, "a BPE tokenizer without merges");
    std::string joined;
    for (const element merge : merges) {
      const size_t rank = recipe_.merges.size();
      const auto [left, right] = two_of(merge, rank);
      joined.assign(left).append(right);
      recipe_.merges.push_back({id_of(left, rank), id_of(right, rank), id_of(joined, rank)});
    }
  }

  static std::pair<std::string_view, std::string_view> two_of(element merge, size_t rank) {
    std::string_view text, left, right;
    if (merge.get(text) == simdjson::SUCCESS) {
      const size_t space = text.find(' ');
      if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos)
        return {text.substr(0, space), text.substr(space + 1)};
      throw_error(ErrorCode::BadFile, "merge {} is {}, not two tokens with one space between", rank,
                  shown(text));
    }
    array pair;
    if (merge.get(pair) == simdjson::SUCCESS && pair.size() == 2 &&
        pair.at(0).get(left) == simdjson::SUCCESS && pair.at(1).get(right) == simdjson::SUCCESS)
      return {left, right};
    throw_error(ErrorCode::BadFile, "merge {} is neither \"a b\" nor [\"a\", \"b\"]", rank);
  }

  void read_added() {
    array added;
    if (at(root_, "added_tokens").get(added) != simdjson::SUCCESS) return;
    for (const element e : added) {
      object o;
      int64_t id = -1;
      if (e.get(o) != simdjson::SUCCESS || at(o, "id").get(id) != simdjson::SUCCESS ||
          text_or(o, "content", "").empty())
        throw_error(ErrorCode::BadFile, "added token {} has no id or no content", recipe_.added.size());
      AddedToken token{.content = std::string(text_or(o, "content", "")), .id = static_cast<int32_t>(id)};
      token.special = flag(o, "special", false);
      token.lstrip = flag(o, "lstrip", false);
      token.rstrip = flag(o, "rstrip", false);
      token.single_word = flag(o, "single_word", false);
      token.normalized = flag(o, "normalized", !token.special);
      // a plain token of the model that is matched as a whole, too, keeps the alphabet of the model
      const bool in_model = ids_.contains(token.content);
      place(id, token.content,
            token.special ? TokenType::Control
            : in_model    ? TokenType::Normal
                          : TokenType::UserDefined);
      recipe_.added.push_back(std::move(token));
    }
  }

  void read_unknown(object model) {
    const std::string_view unknown = text_or(model, "unk_token", "");
    if (unknown.empty()) return;
    recipe_.unk = find(unknown);
    if (recipe_.unk < 0)
      throw_error(ErrorCode::BadFile, "the unknown token {} is not in the vocabulary", shown(unknown));
  }

  int32_t find(std::string_view token) const {
    if (const auto it = ids_.find(token); it != ids_.end()) return it->second;
    for (const AddedToken& t : recipe_.added)
      if (t.content == token) return t.id;
    return -1;
  }

  /// bos_token and eos_token, texts or objects with "content".
  void read_config(std::string_view config) {
    simdjson::dom::parser parser;
    element root;
    object o;
    if (parser.parse(simdjson::padded_string(config)).get(root) != simdjson::SUCCESS ||
        root.get(o) != simdjson::SUCCESS)
      throw_error(ErrorCode::BadFile, "tokenizer_config.json is no JSON object");
    for (const auto& [key, id] :
         {std::pair<const char*, int32_t*>{"bos_token", &recipe_.bos}, {"eos_token", &recipe_.eos}}) {
      object token;
      const bool is_object = at(o, key).get(token) == simdjson::SUCCESS;
      const std::string_view text = is_object ? text_or(token, "content", "") : text_or(o, key, "");
      if (*id < 0 && !text.empty()) *id = find(text);
    }
  }

  void fill_holes() {
    for (size_t i = 0; i < recipe_.tokens.size(); i++)
      if (recipe_.tokens[i].empty()) recipe_.types[i] = TokenType::Unused;
  }

  object root_;
  TokenizerRecipe recipe_;
  std::unordered_map<std::string_view, int32_t> ids_;  // the model's vocabulary
  size_t n_listed_ = 0;  // tokens in the file, added ones that are also in the vocabulary twice
  bool byte_fallback_ = false;
};

}  // namespace

TokenizerRecipe recipe_of_json(std::string_view json, std::string_view config) {
  if (json.size() > kMaxJsonBytes)
    throw_error(ErrorCode::Unsupported, "a tokenizer of {} bytes; at most {} are supported", json.size(),
                kMaxJsonBytes);
  simdjson::dom::parser parser;
  if (const auto error = parser.allocate(std::max<size_t>(json.size(), 64), kMaxDepth))
    throw_error(ErrorCode::OutOfMemory, "no memory for a tokenizer of {} bytes: {}", json.size(),
                simdjson::error_message(error));
  element root;
  object o;
  if (const auto error = parser.parse(simdjson::padded_string(json)).get(root))
    throw_error(ErrorCode::BadFile, "the tokenizer is no JSON: {}", simdjson::error_message(error));
  if (root.get(o) != simdjson::SUCCESS)
    throw_error(ErrorCode::BadFile, "the tokenizer is JSON, but no object");
  return Reader(o).run(config);
}

}  // namespace kv2
