// SPDX-License-Identifier: Apache-2.0
#include "text/added_tokens.h"

#include <gtest/gtest.h>

#include <random>

#include "text/test_vocabulary.h"

namespace kv2 {
namespace {

using Special = Tokenizer::Special;

/// "text|<id>:text|…"
std::string split(const AddedTokens& tokens, std::string_view text, Special special = Special::Parse) {
  std::string out;
  tokens.split(text, special, [&](Stretch s) {
    if (!out.empty()) out += "|";
    if (s.id >= 0) out += std::to_string(s.id) + ":";
    out += s.text;
  });
  return out;
}

TEST(AddedTokens, LeftmostThenLongest) {
  const AddedTokens tokens({{"<a>", 1}, {"<a><b>", 2}, {"<", 3}, {"b><", 4}});
  EXPECT_EQ(split(tokens, ""), "");
  EXPECT_EQ(split(tokens, "plain"), "plain");
  EXPECT_EQ(split(tokens, "x<a>y"), "x|1:<a>|y");
  EXPECT_EQ(split(tokens, "<a><b>"), "2:<a><b>");
  EXPECT_EQ(split(tokens, "<a><c>"), "1:<a>|3:<|c>");
  EXPECT_EQ(split(tokens, "ab><a>"), "a|4:b><|a>");
}

TEST(AddedTokens, SpecialOnesAreTextWhenAsked) {
  const AddedTokens tokens({{.content = "<eot>", .id = 1, .special = true}, {.content = "<tool>", .id = 2}});
  EXPECT_EQ(split(tokens, "a<eot><tool>b"), "a|1:<eot>|2:<tool>|b");
  EXPECT_EQ(split(tokens, "a<eot><tool>b", Special::AsText), "a<eot>|2:<tool>|b");
}

TEST(AddedTokens, WhiteSpaceAroundBelongsToStrippingTokens) {
  const AddedTokens tokens(
      {{.content = "L", .id = 1, .lstrip = true}, {.content = "R", .id = 2, .rstrip = true}});
  EXPECT_EQ(split(tokens, "a \u3000L b"), "a|1: \u3000L| b");
  EXPECT_EQ(split(tokens, " L"), "1: L");
  EXPECT_EQ(split(tokens, "a R\n\u00a0b"), "a |2:R\n\u00a0|b");
  EXPECT_EQ(split(tokens, "R  L"), "2:R  |1:L");  // nobody takes the same space twice
}

TEST(AddedTokens, SingleWordsStandAlone) {
  const AddedTokens tokens({{.content = "the", .id = 1, .single_word = true}});
  EXPECT_EQ(split(tokens, "the"), "1:the");
  EXPECT_EQ(split(tokens, "(the) the\u0301 other the."), "(|1:the|) the\u0301 other |1:the|.");
  EXPECT_EQ(split(tokens, "bathe"), "bathe");
  EXPECT_EQ(split(tokens,
                  "\u00e9the \xff"
                  "the\xff"),
            "\u00e9the \xff|1:the|\xff");
}

TEST(AddedTokens, RandomTextsAgreeWithASlowSearch) {
  std::mt19937 rng(11);
  for (int round = 0; round < 200; round++) {
    std::vector<AddedToken> list;
    for (int i = 0; i < 8; i++) {
      const std::string content = random_text(rng, {"a", "b", "\u00e9"}, 1 + rng() % 5);
      bool fresh = true;
      for (const AddedToken& t : list) fresh = fresh && t.content != content;
      if (fresh) list.push_back({.content = content, .id = i});
    }
    const AddedTokens tokens(list);
    const std::string text = random_text(rng, {"a", "b", "\u00e9", "c", "\xc3"}, rng() % 60);
    std::string expected, plain;
    const auto flush = [&] {
      if (!plain.empty()) expected.append(expected.empty() ? "" : "|").append(plain);
      plain.clear();
    };
    for (size_t at = 0; at < text.size();) {
      const AddedToken* best = nullptr;
      for (const AddedToken& t : list)
        if (text.compare(at, t.content.size(), t.content) == 0 &&
            (!best || t.content.size() > best->content.size()))
          best = &t;
      if (!best) {
        plain += text[at++];
        continue;
      }
      flush();
      expected.append(expected.empty() ? "" : "|")
          .append(std::to_string(best->id))
          .append(":")
          .append(best->content);
      at += best->content.size();
    }
    flush();
    ASSERT_EQ(split(tokens, text), expected) << text;
  }
}

}  // namespace
}  // namespace kv2
