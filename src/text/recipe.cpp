// SPDX-License-Identifier: Apache-2.0
// TokenizerSpec -> TokenizerRecipe, and the checks that both sources of recipes share.
#include "text/recipe.h"

#include <cmath>
#include <unordered_map>

#include "base/check.h"
#include "text/utf8.h"

namespace kv2 {
namespace {

using Ids = std::unordered_map<std::string_view, int32_t>;

Ids ids_of(const std::vector<std::string>& tokens) {
  Ids ids;
  ids.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); i++) {
    if (tokens[i].empty()) continue;  // a hole: no text becomes it
    const auto [it, fresh] = ids.emplace(tokens[i], static_cast<int32_t>(i));
    if (!fresh)
      throw_error(ErrorCode::BadFile, "the vocabulary has {} twice, as tokens {} and {}", shown(tokens[i]),
                  it->second, i);
  }
  return ids;
}

void check_sizes(const TokenizerSpec& spec) {
  const size_t n = spec.tokens.size();
  if (n == 0) throw_error(ErrorCode::BadFile, "the vocabulary is empty");
  if (n > kMaxTokens)
    throw_error(ErrorCode::BadFile, "the vocabulary has {} tokens; at most {} are supported", n, kMaxTokens);
  if (!spec.types.empty() && spec.types.size() != n)
    throw_error(ErrorCode::BadFile, "the vocabulary has {} tokens and {} token types", n, spec.types.size());
  for (size_t i = 0; i < spec.types.size(); i++)
    if (spec.types[i] < TokenType::Normal || spec.types[i] > TokenType::Byte)
      throw_error(ErrorCode::BadFile, "token {} ({}) has type {}; types are 1 to 6", i, shown(spec.tokens[i]),
                  static_cast<int>(spec.types[i]));
  if (spec.kind != TokenizerKind::SentencePiece) return;
  if (spec.scores.size() != n)
    throw_error(ErrorCode::BadFile, "a SentencePiece vocabulary of {} tokens with {} scores", n,
                spec.scores.size());
  for (size_t i = 0; i < n; i++)
    if (std::isnan(spec.scores[i]))
      throw_error(ErrorCode::BadFile, "the score of token {} is not a number", i);
}

std::vector<Merge> merges_of(const TokenizerSpec& spec) {
  if (spec.merges.empty())
    throw_error(ErrorCode::BadFile,
                "a byte-level BPE tokenizer without merges; convert the model again with its merges");
  const Ids ids = ids_of(spec.tokens);
  const auto id_of = [&](std::string_view token, size_t rank) {
    const auto it = ids.find(token);
    if (it == ids.end())
      throw_error(ErrorCode::BadFile, "merge {} ({}) needs the token {}, which the vocabulary does not have",
                  rank, shown(spec.merges[rank]), shown(token));
    return it->second;
  };
  std::vector<Merge> merges;
  merges.reserve(spec.merges.size());
  for (size_t rank = 0; rank < spec.merges.size(); rank++) {
    const std::string_view text = spec.merges[rank];
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == text.size() ||
        text.find(' ', space + 1) != std::string_view::npos)
      throw_error(ErrorCode::BadFile, "merge {} is {}, not two tokens with one space between", rank,
                  shown(text));
    const std::string_view left = text.substr(0, space), right = text.substr(space + 1);
    merges.push_back(
        {id_of(left, rank), id_of(right, rank), id_of(std::string(left) + std::string(right), rank)});
  }
  return merges;
}

void find_byte_tokens(TokenizerRecipe& recipe) {  // files without types
  for (size_t i = 0; i < recipe.tokens.size(); i++)
    if (byte_token_value(recipe.tokens[i]) >= 0) recipe.types[i] = TokenType::Byte;
}

std::vector<AddedToken> added_of(const TokenizerRecipe& recipe) {
  std::vector<AddedToken> added;
  for (size_t i = 0; i < recipe.tokens.size(); i++) {
    const TokenType type = recipe.types[i];
    const bool special = type == TokenType::Control || type == TokenType::Unknown;
    if (recipe.tokens[i].empty() || !(special || type == TokenType::UserDefined)) continue;
    added.push_back({.content = recipe.tokens[i], .id = static_cast<int32_t>(i), .special = special});
  }
  return added;
}

}  // namespace

int byte_token_value(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

std::string shown(std::string_view token) {
  std::string out = "\"";
  for (const char c : replace_invalid_utf8(token.substr(0, 40))) {
    if (static_cast<uint8_t>(c) < 0x20 || c == 0x7F)
      out += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    else
      out += c;
  }
  return out + (token.size() > 40 ? "…\"" : "\"");
}

void check_recipe(const TokenizerRecipe& recipe) {
  const auto n = static_cast<int64_t>(recipe.tokens.size());
  const auto check_id = [&](const char* name, int64_t id) {
    if (id < -1 || id >= n)
      throw_error(ErrorCode::BadFile, "{} is token {}, but the vocabulary has {} tokens", name, id, n);
  };
  check_id("the begin-of-text token", recipe.bos);
  check_id("the end-of-text token", recipe.eos);
  check_id("the unknown token", recipe.unk);
  if (recipe.add_bos && recipe.bos < 0)
    throw_error(ErrorCode::BadFile, "the tokenizer adds a begin-of-text token but does not name one");
  if (recipe.add_eos && recipe.eos < 0)
    throw_error(ErrorCode::BadFile, "the tokenizer adds an end-of-text token but does not name one");
  ids_of(recipe.tokens);
  bool all_bytes = true;
  std::vector<bool> seen(256);
  for (size_t i = 0; i < recipe.tokens.size(); i++) {
    if (recipe.types[i] != TokenType::Byte) continue;
    const int b = byte_token_value(recipe.tokens[i]);
    if (b < 0)
      throw_error(ErrorCode::BadFile, "token {} is {}, but a byte token reads <0x00> to <0xFF>", i,
                  shown(recipe.tokens[i]));
    seen[static_cast<size_t>(b)] = true;
  }
  for (const bool s : seen) all_bytes = all_bytes && s;
  if (recipe.kind == TokenizerKind::SentencePiece && !all_bytes && recipe.unk < 0)
    throw_error(ErrorCode::BadFile,
                "the vocabulary has neither all byte tokens <0x00> to <0xFF> nor an unknown token");
}

TokenizerRecipe recipe_of(TokenizerSpec spec) {
  check_sizes(spec);
  TokenizerRecipe recipe;
  recipe.kind = spec.kind;
  recipe.bos = spec.bos, recipe.eos = spec.eos;
  recipe.add_bos = spec.add_bos, recipe.add_eos = spec.add_eos;
  recipe.ignore_merges = spec.ignore_merges;
  if (spec.kind == TokenizerKind::ByteLevelBpe) {
    apply_pre_tokenizer(spec.pre, recipe);
    recipe.merges = merges_of(spec);
    // unk stays unset: the references of this family drop bytes without a token
  } else {
    recipe.unk = spec.unk;
    recipe.scores = std::move(spec.scores);
    recipe.prefix = spec.add_space_prefix ? SpacePrefix::Each : SpacePrefix::Never;
  }
  recipe.tokens = std::move(spec.tokens);
  recipe.types = std::move(spec.types);
  if (recipe.types.empty()) {
    recipe.types.assign(recipe.tokens.size(), TokenType::Normal);
    if (recipe.kind == TokenizerKind::SentencePiece) find_byte_tokens(recipe);
  }
  check_recipe(recipe);
  recipe.added = added_of(recipe);
  return recipe;
}

}  // namespace kv2
