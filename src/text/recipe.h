// SPDX-License-Identifier: Apache-2.0
// TokenizerRecipe: everything a Tokenizer does, spelled out. Both sources (TokenizerSpec, tokenizer.json) are
// checked and turned into one; what a recipe says has been validated, so nothing behind it doubts an id.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"
#include "text/tokenizer.h"

namespace kv2 {

inline constexpr size_t kMaxTokens = size_t{1} << 24;

struct Merge {
  int32_t left, right, result;
};

struct AddedToken {
  std::string content;
  int32_t id;
  bool special = false;      // matched with Special::Parse only
  bool lstrip = false;       // takes the white space before it, too
  bool rstrip = false;       // … and behind it
  bool single_word = false;  // only between characters that are no word characters
  bool normalized = false;   // matched in normalized text
};

struct SplitStep {
  std::string pattern;  // Oniguruma
  Gaps gaps = Gaps::Keep;
};

/// Where a space is put before text that another token does not precede (SentencePiece; GPT-2's
/// add_prefix_space).
enum class SpacePrefix : uint8_t {
  Never,
  FirstUnlessThere,  // the beginning of the text
  EachUnlessThere,   // the text behind every added token, too
  Each,              // even where a space is
};

struct TokenizerRecipe {
  TokenizerKind kind = TokenizerKind::ByteLevelBpe;
  std::vector<std::string> tokens;
  std::vector<TokenType> types;  // one per token
  std::vector<float> scores;     // SentencePiece with scores; empty: merges
  std::vector<Merge> merges;     // best first
  std::vector<SplitStep> split;  // in this order, each on the pieces of the one before
  std::vector<AddedToken> added;
  SpacePrefix prefix = SpacePrefix::Never;
  bool nfc = false;
  bool ignore_merges = false;
  bool last_merge_wins = false;  // of one listed twice: tokenizers; the first: llama.cpp
  bool fuse_unknown = true;      // one unk for a run of unknown characters
  int32_t bos = -1, eos = -1, unk = -1;
  bool add_bos = false, add_eos = false;
};

/// The steps of a pre-tokenizer by its name in GGUF ("gpt-2", "llama-bpe", "qwen2", "smollm").
/// Errors: Unsupported listing the names known.
void apply_pre_tokenizer(std::string_view name, TokenizerRecipe& recipe);
/// Errors: as Tokenizer's constructor.
TokenizerRecipe recipe_of(TokenizerSpec spec);
/// Errors: as Tokenizer::from_json.
TokenizerRecipe recipe_of_json(std::string_view json, std::string_view config);
/// What both share: ids in range, token texts unique. Throws BadFile.
void check_recipe(const TokenizerRecipe& recipe);

/// The value of "<0x41>", -1 for any other text.
int byte_token_value(std::string_view token);
/// A token's text as one printable line for messages, cut to 40 bytes.
std::string shown(std::string_view token);

}  // namespace kv2
