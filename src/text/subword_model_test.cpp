// SPDX-License-Identifier: Apache-2.0
// Merging against encoders that look at every pair every time.
#include "text/subword_model.h"

#include <gtest/gtest.h>

#include <map>

#include "text/test_vocabulary.h"
#include "text/utf8.h"

namespace kv2 {
namespace {

std::vector<int32_t> encode(const SubwordModel& model, std::string_view text) {
  Merger merger;
  std::vector<int32_t> out;
  model.encode(text, merger, out);
  return out;
}

std::vector<int32_t> ids_of(const TokenizerRecipe& recipe, const std::vector<std::string>& pieces) {
  std::map<std::string, int32_t> ids;
  for (size_t i = 0; i < recipe.tokens.size(); i++) ids[recipe.tokens[i]] = static_cast<int32_t>(i);
  std::vector<int32_t> out;
  for (const std::string& piece : pieces) out.push_back(ids.at(piece));
  return out;
}

constexpr double kNever = std::numeric_limits<double>::infinity();

TEST(SubwordModel, MergesByRankAsTheSlowEncoder) {
  std::mt19937 rng(20260);
  for (int round = 0; round < 30; round++) {
    const TokenizerSpec spec = random_bpe(rng, 5 + static_cast<int>(rng() % 120));
    const TokenizerRecipe recipe = recipe_of(spec);
    const SubwordModel model(recipe);
    std::map<std::string, double> ranks;
    for (size_t i = 0; i < spec.merges.size(); i++) ranks[spec.merges[i]] = static_cast<double>(i);
    for (int n = 0; n < 60; n++) {
      const std::string text =
          random_text(rng, {"a", "b", "c", "d", " ", "1", "\xC3", "\xA9", "\x80", "z"}, 1 + rng() % 40);
      std::vector<std::string> bytes;
      for (const char c : text) bytes.push_back(byte_alphabet()[static_cast<uint8_t>(c)]);
      const auto joined = join_slowly(bytes, [&](const std::string& l, const std::string& r) {
        const auto it = ranks.find(l + " " + r);
        return it == ranks.end() ? kNever : it->second;
      });
      ASSERT_EQ(encode(model, text), ids_of(recipe, joined)) << round << " " << n;
    }
  }
}

TEST(SubwordModel, MergesByScoreAsTheSlowEncoder) {
  std::mt19937 rng(7);
  for (int round = 0; round < 30; round++) {
    const TokenizerRecipe recipe = recipe_of(random_sentence_piece(rng, 5 + static_cast<int>(rng() % 100)));
    const SubwordModel model(recipe);
    std::map<std::string, double> costs;
    for (size_t i = 0; i < recipe.tokens.size(); i++)
      if (recipe.types[i] == TokenType::Normal) costs[recipe.tokens[i]] = -recipe.scores[i];
    for (int n = 0; n < 60; n++) {
      std::vector<std::string> letters;
      for (size_t i = 0, count = 1 + rng() % 40; i < count; i++)
        letters.push_back(std::vector<std::string>{"▁", "a", "b", "c", "é", "漢"}[rng() % 6]);
      std::string text;
      for (const std::string& c : letters) text += c;
      const auto joined = join_slowly(letters, [&](const std::string& l, const std::string& r) {
        const auto it = costs.find(l + r);
        return it == costs.end() ? kNever : it->second;
      });
      ASSERT_EQ(encode(model, text), ids_of(recipe, joined)) << round << " " << n << " " << text;
    }
  }
}

TEST(SubwordModel, UnknownCharactersAreSpelledInBytes) {
  std::mt19937 rng(3);
  const TokenizerRecipe recipe = recipe_of(random_sentence_piece(rng, 10));
  const SubwordModel model(recipe);
  EXPECT_EQ(model.n_missing_bytes(), 0);
  EXPECT_EQ(encode(model, "z\u00df\xff"), ids_of(recipe, {"<0x7A>", "<0xC3>", "<0x9F>", "<0xFF>"}));
  EXPECT_EQ(encode(model, "<s><0x41>").size(), 9u);  // control and byte tokens never come from text
}

TEST(SubwordModel, WithoutByteTokensARunOfUnknownsIsOneToken) {
  TokenizerSpec spec;
  spec.kind = TokenizerKind::SentencePiece;
  spec.tokens = {"<unk>", "a", "▁"};
  spec.types = {TokenType::Unknown, TokenType::Normal, TokenType::Normal};
  spec.scores = {0, -1, -2};
  spec.unk = 0;
  const TokenizerRecipe recipe = recipe_of(spec);
  EXPECT_EQ(encode(SubwordModel(recipe), "axyza漢\xff"), (std::vector<int32_t>{1, 0, 1, 0}));
}

TEST(SubwordModel, OneLongPreTokenIsNotQuadratic) {
  // a million equal bytes: comparing every pair every time would take 10^12 steps
  TokenizerSpec spec;
  spec.pre = "gpt-2";
  for (const std::string& c : byte_alphabet()) spec.tokens.push_back(c);
  for (std::string a = "a"; a.size() <= 64; a += a) {
    spec.merges.push_back(a + " " + a);
    spec.tokens.push_back(a + a);
  }
  const TokenizerRecipe recipe = recipe_of(spec);
  const SubwordModel model(recipe);
  const std::vector<int32_t> ids = encode(model, std::string(1000003, 'a'));
  EXPECT_EQ(ids.size(), 1000003u / 128 + 3);  // 67 left over: 64, 2, 1
  std::mt19937 rng(1);
  const TokenizerRecipe pieces = recipe_of(random_sentence_piece(rng, 50));
  EXPECT_FALSE(encode(SubwordModel(pieces), std::string(1000003, 'a')).empty());
}

TEST(SubwordModel, AWholeTokenIsTakenWhereMergesAreIgnored) {
  std::mt19937 rng(5);
  TokenizerSpec spec = random_bpe(rng, 1);
  spec.tokens.push_back("zzz");  // no merge makes it
  EXPECT_EQ(encode(SubwordModel(recipe_of(spec)), "zzz").size(), 3u);
  spec.ignore_merges = true;
  const TokenizerRecipe recipe = recipe_of(spec);
  EXPECT_EQ(encode(SubwordModel(recipe), "zzz"), (std::vector<int32_t>{257}));
  EXPECT_EQ(encode(SubwordModel(recipe), "zzzz").size(), 4u);
}

TEST(SubwordModel, BytesWithoutATokenAreDropped) {
  std::mt19937 rng(5);
  TokenizerSpec spec = random_bpe(rng, 1);
  spec.tokens['q'] = "not a byte";
  const TokenizerRecipe recipe = recipe_of(spec);
  const SubwordModel model(recipe);
  EXPECT_EQ(model.n_missing_bytes(), 1);
  EXPECT_EQ(encode(model, "xqy"), (std::vector<int32_t>{'x', 'y'}));
}

}  // namespace
}  // namespace kv2
