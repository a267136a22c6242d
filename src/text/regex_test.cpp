// SPDX-License-Identifier: Apache-2.0
#include "text/regex.h"

#include <gtest/gtest.h>

#include "base/check.h"

namespace kv2 {
namespace {

using Pieces = std::vector<std::string>;

Pieces split(std::string_view pattern, std::string_view text, Gaps gaps = Gaps::Keep) {
  const Regex regex(pattern);
  std::vector<std::string_view> pieces;
  RegexSplitter(regex).split(text, gaps, pieces);
  return Pieces(pieces.begin(), pieces.end());
}

TEST(Regex, MatchesAndGapsInOrder) {
  EXPECT_EQ(split(R"(\p{N}+)", "a12b3"), (Pieces{"a", "12", "b", "3"}));
  EXPECT_EQ(split(R"(\p{N}+)", "a12b3", Gaps::Drop), (Pieces{"12", "3"}));
  EXPECT_EQ(split(R"(\p{N}+)", "abc"), (Pieces{"abc"}));
  EXPECT_EQ(split(R"(\p{N}+)", "abc", Gaps::Drop), Pieces{});
  EXPECT_EQ(split(R"(\p{N}+)", ""), Pieces{});
  EXPECT_EQ(split(R"(é|漢)", "aé漢b"), (Pieces{"a", "é", "漢", "b"}));
}

TEST(Regex, EmptyMatchesCut) {
  EXPECT_EQ(split("(?=[A-Z])", "oneTwoÄThree"), (Pieces{"one", "TwoÄ", "Three"}));
  EXPECT_EQ(split(R"((?=(\d{3})+(?!\d)))", "1234567"), (Pieces{"1", "234", "567"}));
  EXPECT_EQ(split("x*", "axxb"), (Pieces{"a", "xx", "b"}));
  EXPECT_EQ(split("$", "ab\ncd"), (Pieces{"ab", "\ncd"}));
  EXPECT_EQ(split("^", "ab\ncd"), (Pieces{"ab\n", "cd"}));
}

TEST(Regex, ClassesAreOnigurumas) {
  // U+180E is white space for PCRE2 alone; U+0085 and U+3000 are for both
  EXPECT_EQ(split(R"(\s+)", "a\u180eb\u0085\u3000c"), (Pieces{"a\u180eb", "\u0085\u3000", "c"}));
  EXPECT_EQ(split(R"(\S+)", "a\u180eb c"), (Pieces{"a\u180eb", " ", "c"}));
  EXPECT_EQ(split(R"([^\s]+)", "a\u180eb c"), (Pieces{"a\u180eb", " ", "c"}));
  // marks and connectors are word characters, fractions are not
  EXPECT_EQ(split(R"(\w+)", "e\u0301_9\u00bd", Gaps::Drop), (Pieces{"e\u0301_9"}));
  EXPECT_EQ(split(R"([\w]+)", "a\u0301 b", Gaps::Drop), (Pieces{"a\u0301", "b"}));
  EXPECT_EQ(split(R"(\bb\b)", "b\u0301 b", Gaps::Drop), (Pieces{"b"}));
  EXPECT_EQ(split(R"(\h+)", "x1aF g", Gaps::Drop), (Pieces{"1aF"}));
  EXPECT_EQ(split(R"(\u00e9+)", "aéé", Gaps::Drop), (Pieces{"éé"}));
  EXPECT_EQ(split("a.c", "abc a\nc", Gaps::Drop), (Pieces{"abc"}));
  EXPECT_EQ(split(R"((?i:'s))", "'S '\u017f", Gaps::Drop), (Pieces{"'S", "'\u017f"}));
  EXPECT_EQ(split(R"(\p{L}{2,3})", "abcd", Gaps::Drop), (Pieces{"abc"}));
}

TEST(Regex, WhatMeansSomethingElseIsRefused) {
  for (const char* pattern :
       {"[a[bc]]",    "[a&&b]",   "(?m:a)",  "(?x)a", "a{2}+", "a{,3}",   "a{2}?",    "a{b",     "(*UCP)a",
        R"(\K)",      R"(\Qa\E)", R"([\W])", "[]a]",  R"(\)",  R"(\u12)", R"(\g<1>)", "(?R)",    "(?C1)a",
        R"(\p{Foo})", "(a",       "a)",      "[a",    "*",     R"(\C)",   "(?(1)a)",  "(?<=a*)b"}) {
    try {
      Regex regex{pattern};
      ADD_FAILURE() << pattern << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::Unsupported) << pattern;
      EXPECT_NE(std::string(e.what()).find("pre-tokenizer pattern"), std::string::npos) << e.what();
    }
  }
  EXPECT_THROW(Regex(std::string(1 << 17, 'a')), Error);
  EXPECT_THROW(Regex(std::string_view("a\xff", 2)), Error);
}

TEST(Regex, EndlessBacktrackingGivesUp) {
  const Regex regex("(?:a|a)*[bc]");
  std::vector<std::string_view> pieces;
  const std::string text(64, 'a');
  try {
    RegexSplitter(regex).split(text, Gaps::Keep, pieces);
    FAIL() << "2^64 steps";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::BadArgument);
  }
}

TEST(Regex, DeepBacktrackingFallsBackToTheInterpreter) {
  // each round keeps a backtracking point; a million of them are more than the compiled code's small stack
  const std::string text(300000, 'a');
  EXPECT_EQ(split("(?:a|b)*", text), (Pieces{text}));
}

}  // namespace
}  // namespace kv2
