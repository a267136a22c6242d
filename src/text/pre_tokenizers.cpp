// SPDX-License-Identifier: Apache-2.0
// The pre-tokenizers that GGUF files name, as their tokenizer.json spells them.
#include <fmt/format.h>

#include "base/check.h"
#include "text/recipe.h"

namespace kv2 {
namespace {

constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDigit = R"(\p{N})";

struct PreTokenizer {
  const char* name;
  std::vector<SplitStep> steps;
  bool nfc = false, ignore_merges = false;
};

const std::vector<PreTokenizer>& table() {
  static const std::vector<PreTokenizer> rows = {
      {"gpt-2", {{kGpt2}}},
      {"llama-bpe", {{kLlama3}}, false, true},
      {"llama3", {{kLlama3}}, false, true},
      {"llama-v3", {{kLlama3}}, false, true},
      // the official tokenizer normalizes; llama.cpp does not and so differs on decomposed letters
      {"qwen2", {{kQwen2}}, true},
      // digits alone first, then GPT-2's expression on each piece: " 12" is " ", "1", "2"
      {"smollm", {{kDigit}, {kGpt2}}},
      {"starcoder", {{kDigit}, {kGpt2}}},
  };
  return rows;
}

}  // namespace

void apply_pre_tokenizer(std::string_view name, TokenizerRecipe& recipe) {
  std::string known;
  for (const PreTokenizer& row : table()) {
    if (row.name == name) {
      recipe.split = row.steps;
      recipe.nfc = row.nfc;
      recipe.ignore_merges = recipe.ignore_merges || row.ignore_merges;
      return;
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  }
  if (name.empty() || name == "default")
    throw_error(
        ErrorCode::Unsupported,
        "the model does not say which pre-tokenizer its vocabulary was made with ({}), and a wrong one gives "
        "wrong tokens; supported are {}; convert the model again with a current converter",
        name.empty() ? "no name" : "\"default\"", known);
  throw_error(ErrorCode::Unsupported, "pre-tokenizer {} is not supported; supported are {}", shown(name),
              known);
}

}  // namespace kv2
