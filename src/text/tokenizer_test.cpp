// SPDX-License-Identifier: Apache-2.0
// The whole tokenizer on small vocabularies: round trips of any bytes, streaming, special tokens, hostile
// specs.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "base/check.h"
#include "text/recipe.h"
#include "text/test_vocabulary.h"
#include "text/utf8.h"

namespace kv2 {
namespace {

using Special = Tokenizer::Special;
using Bos = Tokenizer::Bos;
using Ids = std::vector<int32_t>;

/// random_bpe with "<eot>" (control, bos and eos) and "<tool>" (user defined).
TokenizerSpec with_added(std::mt19937& rng, std::string pre = "gpt-2") {
  TokenizerSpec spec = random_bpe(rng, 60, std::move(pre));
  spec.types.assign(spec.tokens.size(), TokenType::Normal);
  spec.bos = spec.eos = static_cast<int32_t>(spec.tokens.size());
  for (const auto& [token, type] :
       {std::pair{"<eot>", TokenType::Control}, {"<tool>", TokenType::UserDefined}}) {
    spec.tokens.push_back(token);
    spec.types.push_back(type);
  }
  return spec;
}

std::string stream(const Tokenizer& tokenizer, const Ids& ids) {
  Detokenizer detokenizer(tokenizer);
  std::string out;
  for (const int32_t id : ids) {
    const std::string part = detokenizer.push(id);
    EXPECT_EQ(replace_invalid_utf8(part), part) << "a character was split";
    out += part;
  }
  return out + detokenizer.finish();
}

TEST(Tokenizer, AnyBytesComeBack) {
  std::mt19937 rng(42);
  const std::vector<std::string> parts = {"a",    "bc",       " ",     "  ",     "\n",   "1",
                                          "é",    "漢",       "😀",     "\xff",   "\xe4", "\xb8",
                                          "\xad", "\xf0\x9f", "<eot>", "<tool>", "<",    std::string(1, '\0'),
                                          "'s",   "e\u0301",  "\u180e"};
  for (const char* pre : {"gpt-2", "llama-bpe", "smollm"}) {
    const Tokenizer tokenizer(with_added(rng, pre));
    EXPECT_EQ(tokenizer.n_missing_bytes(), 0);
    for (int i = 0; i < 1000; i++) {
      const std::string text = i % 2 ? random_bytes(rng, rng() % 50) : random_text(rng, parts, rng() % 30);
      for (const Special special : {Special::Parse, Special::AsText}) {
        const Ids ids = tokenizer.encode(text, special, Bos::Never);
        ASSERT_EQ(tokenizer.decode(ids, Special::AsText), text);
        ASSERT_EQ(stream(tokenizer, ids), replace_invalid_utf8(tokenizer.decode(ids, Special::Parse)));
        std::string joined;
        for (const int32_t id : ids) joined += tokenizer.piece(id, Special::AsText);
        ASSERT_EQ(joined, text);
      }
    }
  }
}

TEST(Tokenizer, AnyBytesComeBackFromSentencePiece) {
  std::mt19937 rng(43);
  TokenizerSpec spec = random_sentence_piece(rng, 80);
  for (const bool prefix : {true, false}) {
    spec.add_space_prefix = prefix;
    const Tokenizer tokenizer(spec);
    EXPECT_EQ(tokenizer.strips_leading_space(), prefix);
    for (int i = 0; i < 1000; i++) {
      const std::string text =
          i % 2
              ? random_bytes(rng, rng() % 50)
              : random_text(rng, {"a", "b", "c", " ", "  ", "é", "漢", "z", "\xff", "\xe2\x96"}, rng() % 30);
      if (text.find("▁") != std::string::npos) continue;  // would come back as a space
      const Ids ids = tokenizer.encode(text, Special::AsText, Bos::Never);
      ASSERT_EQ(tokenizer.decode(ids, Special::AsText), text);
      ASSERT_EQ(stream(tokenizer, ids), replace_invalid_utf8(text));
    }
  }
}

TEST(Tokenizer, IllFormedBytesArePreTokensOfTheirOwn) {
  // a merge across the border of well-formed text and stray bytes is never made
  TokenizerSpec spec;
  spec.pre = "gpt-2";
  for (const std::string& c : byte_alphabet()) spec.tokens.push_back(c);
  const std::string a = "a", ff = byte_alphabet()[0xFF], fe = byte_alphabet()[0xFE];
  for (const auto& [l, r] : {std::pair{a, ff}, {ff, a}, {ff, fe}}) {
    spec.merges.push_back(l + " " + r);
    spec.tokens.push_back(l + r);
  }
  const Tokenizer tokenizer(spec);
  EXPECT_EQ(tokenizer.encode("a\xff\xfe"
                             "a\xff",
                             Special::Parse, Bos::Never),
            (Ids{'a', 258, 'a', 0xFF}));
}

TEST(Tokenizer, SpecialTokens) {
  std::mt19937 rng(1);
  TokenizerSpec spec = with_added(rng);
  const int32_t eot = spec.eos, tool = eot + 1;
  const Tokenizer plain(spec);
  EXPECT_EQ(plain.n_tokens(), static_cast<int32_t>(spec.tokens.size()));
  EXPECT_EQ(plain.find("<eot>"), eot);
  EXPECT_EQ(plain.find("nowhere"), -1);
  EXPECT_TRUE(plain.is_special(eot));
  EXPECT_FALSE(plain.is_special(tool));
  EXPECT_FALSE(plain.is_special(-1));
  EXPECT_FALSE(plain.is_special(1 << 30));
  EXPECT_EQ(plain.encode("<eot><tool>", Special::Parse, Bos::AsModelSays), (Ids{eot, tool}));
  const Ids as_text = plain.encode("<eot><tool>", Special::AsText, Bos::Never);
  EXPECT_EQ(as_text.back(), tool);
  EXPECT_GT(as_text.size(), 2u);
  EXPECT_EQ(plain.decode({'x', eot, 'y', -5, 1 << 30}, Special::Parse), "xy");
  EXPECT_EQ(plain.decode({'x', eot, 'y'}, Special::AsText), "x<eot>y");

  spec.add_bos = spec.add_eos = true;
  const Tokenizer ends(spec);
  EXPECT_EQ(ends.encode("z", Special::Parse, Bos::AsModelSays), (Ids{eot, 'z', eot}));
  EXPECT_EQ(ends.encode("z", Special::Parse, Bos::Never), (Ids{'z'}));
  EXPECT_EQ(ends.encode("", Special::Parse, Bos::AsModelSays), (Ids{eot, eot}));
  EXPECT_EQ(ends.encode("<eot>z", Special::Parse, Bos::AsModelSays), (Ids{eot, 'z', eot}));  // no second one
  EXPECT_EQ(ends.encode("<tool>", Special::Parse, Bos::AsModelSays), (Ids{eot, tool, eot}));
  EXPECT_EQ(ends.encode("z<eot>", Special::Parse, Bos::AsModelSays), (Ids{eot, 'z', eot, eot}));
}

TEST(Tokenizer, SentencePieceSpaces) {
  std::mt19937 rng(2);
  const Tokenizer tokenizer(random_sentence_piece(rng, 0));
  const int32_t space = tokenizer.find("▁"), a = tokenizer.find("a"), end = tokenizer.eos();
  EXPECT_EQ(tokenizer.encode("a a", Special::Parse, Bos::AsModelSays), (Ids{1, space, a, space, a}));
  EXPECT_EQ(tokenizer.encode(" a", Special::Parse, Bos::Never), (Ids{space, space, a}));
  EXPECT_EQ(tokenizer.encode("a</s>a", Special::Parse, Bos::Never), (Ids{space, a, end, space, a}));
  EXPECT_EQ(tokenizer.encode("", Special::Parse, Bos::AsModelSays), (Ids{1}));
  EXPECT_EQ(tokenizer.decode({1, space, a, space, a}, Special::Parse), "a a");
  EXPECT_EQ(tokenizer.decode({space, space, a}, Special::Parse), " a");
  Detokenizer goes_on(tokenizer, Detokenizer::Start::Continuation);
  EXPECT_EQ(goes_on.push(space) + goes_on.push(a), " a");
}

TEST(Detokenizer, HoldsBackWhatIsNotComplete) {
  std::mt19937 rng(3);
  const Tokenizer tokenizer(with_added(rng));
  Detokenizer d(tokenizer);
  EXPECT_EQ(d.push(0xF0), "");
  EXPECT_EQ(d.push(0x9F), "");
  EXPECT_EQ(d.push(0x98), "");
  EXPECT_EQ(d.push(tokenizer.eos()), "");  // a hidden token does not disturb
  EXPECT_EQ(d.push(0x80), "😀");
  EXPECT_EQ(d.push(0xE4), "");
  EXPECT_EQ(d.push('x'), "\uFFFDx");  // now known to be ill-formed
  EXPECT_EQ(d.push(0xC3), "");
  EXPECT_EQ(d.finish(), "\uFFFD");
  EXPECT_EQ(d.finish(), "");
}

TEST(Tokenizer, DigitsAndSpacesOfEachPreTokenizer) {
  // " 12" by GPT-2: one piece; Llama 3: " ", "12"; Qwen 2: " ", "1", "2"; SmolLM: " ", "1", "2"
  TokenizerSpec spec;
  for (const std::string& c : byte_alphabet()) spec.tokens.push_back(c);
  for (const auto& [l, r] : {std::pair{"1", "2"}, {"\u0120", "12"}, {"\u0120", "1"}}) {
    spec.merges.push_back(std::string(l) + " " + r);
    spec.tokens.push_back(std::string(l) + r);
  }
  const auto encode = [&](const char* pre) {
    spec.pre = pre;
    return Tokenizer(spec).encode(" 12", Special::Parse, Bos::Never);
  };
  EXPECT_EQ(encode("gpt-2"), (Ids{257}));
  EXPECT_EQ(encode("llama-bpe"), (Ids{' ', 256}));
  EXPECT_EQ(encode("qwen2"), (Ids{' ', '1', '2'}));
  EXPECT_EQ(encode("smollm"), (Ids{' ', '1', '2'}));
}

TEST(Tokenizer, Qwen2Normalizes) {
  std::mt19937 rng(4);
  const Tokenizer tokenizer(random_bpe(rng, 3, "qwen2"));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("e\u0301\xff"
                                              "e\u0301",
                                              Special::Parse, Bos::Never),
                             Special::Parse),
            "é\xffé");
}

void expect_bad(const std::function<void(TokenizerSpec&)>& spoil, ErrorCode code, const std::string& words) {
  std::mt19937 rng(9);
  TokenizerSpec spec = with_added(rng);
  spoil(spec);
  try {
    Tokenizer tokenizer(spec);
    ADD_FAILURE() << "accepted; expected: " << words;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
  }
}

TEST(Tokenizer, HostileSpecsAreRefused) {
  const auto bad = [](const std::function<void(TokenizerSpec&)>& spoil, const std::string& words) {
    expect_bad(spoil, ErrorCode::BadFile, words);
  };
  bad([](auto& s) { s.tokens.clear(); }, "the vocabulary is empty");
  bad([](auto& s) { s.merges.clear(); }, "without merges");
  bad([](auto& s) { s.merges[3] = "nowhere a"; }, "merge 3");
  bad([](auto& s) { s.merges[3] = "a nowhere"; }, "\"nowhere\"");
  bad([](auto& s) { s.merges[3] = "z z"; }, "\"zz\"");  // both there, the result is not
  for (const char* merge : {"", " ", "ab", "a ", " a", "a b c", "a  b", "\xff\xfe"})
    bad([&](auto& s) { s.merges[0] = merge; }, "not two tokens with one space between");
  bad([](auto& s) { s.tokens[70] = s.tokens[71]; }, "twice, as tokens 70 and 71");
  bad([](auto& s) { s.types.pop_back(); }, "token types");
  bad([](auto& s) { s.types[2] = static_cast<TokenType>(7); }, "has type 7");
  bad([](auto& s) { s.types[2] = static_cast<TokenType>(0); }, "has type 0");
  bad([](auto& s) { s.types[2] = TokenType::Byte; }, "a byte token reads");
  bad([](auto& s) { s.bos = static_cast<int32_t>(s.tokens.size()); }, "begin-of-text");
  bad([](auto& s) { s.eos = -2; }, "end-of-text");
  bad([](auto& s) { s.bos = -1, s.add_bos = true; }, "does not name one");
  bad([](auto& s) { s.eos = -1, s.add_eos = true; }, "does not name one");
  bad(
      [](auto& s) {
        s.tokens[70] = std::string(
                           "\n\x01"
                           "evil") +
                       std::string(1000, 'x');
        s.tokens[71] = s.tokens[70];
      },
      "\\x01evil");
  for (const char* pre : {"", "default", "unheard-of"})
    expect_bad([&](auto& s) { s.pre = pre; }, ErrorCode::Unsupported, "supported are gpt-2, llama-bpe");
}

TEST(Tokenizer, HostileSentencePieceSpecsAreRefused) {
  const auto bad = [](const std::function<void(TokenizerSpec&)>& spoil, const std::string& words) {
    expect_bad(
        [&](TokenizerSpec& s) {
          std::mt19937 rng(9);
          s = random_sentence_piece(rng, 20);
          spoil(s);
        },
        ErrorCode::BadFile, words);
  };
  bad([](auto& s) { s.scores.clear(); }, "with 0 scores");
  bad([](auto& s) { s.scores[5] = std::numeric_limits<float>::quiet_NaN(); }, "score of token 5");
  bad([](auto& s) { s.unk = 1 << 20; }, "unknown token");
  bad([](auto& s) { s.unk = -1, s.tokens[20] = "<0x>", s.types[20] = TokenType::Normal; },
      "neither all byte tokens");
  bad([](auto& s) { s.tokens[20] = "<0x1g>"; }, "a byte token reads");
}

TEST(Tokenizer, VocabulariesWithoutTypes) {
  std::mt19937 rng(12);
  TokenizerSpec spec = random_sentence_piece(rng, 20);
  spec.types.clear();
  const Tokenizer tokenizer(spec);
  EXPECT_EQ(tokenizer.n_missing_bytes(), 0);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("zÿ\xff", Special::Parse, Bos::Never), Special::AsText),
            "zÿ\xff");
}

}  // namespace
}  // namespace kv2
