// SPDX-License-Identifier: Apache-2.0
// tokenizer.json: forms that are read alike, and what is refused. Ids of whole files against the reference
// implementation: tests/tokenizer_golden_test.cpp.
#include <gtest/gtest.h>

#include "base/check.h"
#include "text/test_vocabulary.h"
#include "text/tokenizer.h"

namespace kv2 {
namespace {

using Special = Tokenizer::Special;
using Bos = Tokenizer::Bos;
using Ids = std::vector<int32_t>;

/// The parts of a small byte-level file; a test replaces what it is about.
struct Parts {
  std::string vocab = alphabet() + R"(,"ab":256,"abc":257)";
  std::string merges = R"(["a b",["ab","c"]])";
  std::string model_more;
  std::string added =
      R"([{"id":258,"content":"<eot>","special":true},{"id":259,"content":"<tool>","special":false,"normalized":false}])";
  std::string normalizer = "null";
  std::string pre_tokenizer = R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true})";
  std::string post_processor = "null";

  static std::string alphabet() {
    std::string out;
    for (int b = 0; b < 256; b++) {
      const std::string& c = byte_alphabet()[static_cast<size_t>(b)];
      out += (b ? ",\"" : "\"") + (c == "\"" || c == "\\" ? "\\" + c : c) + "\":" + std::to_string(b);
    }
    return out;
  }
  std::string json() const {
    return R"({"version":"1.0","added_tokens":)" + added + R"(,"normalizer":)" + normalizer +
           R"(,"pre_tokenizer":)" + pre_tokenizer + R"(,"post_processor":)" + post_processor +
           R"(,"model":{"type":"BPE")" + model_more + R"(,"vocab":{)" + vocab + R"(},"merges":)" + merges +
           "}}";
  }
};

TEST(TokenizerJson, BothFormsOfMergesAndAddedTokens) {
  const auto tokenizer = Tokenizer::from_json(Parts{}.json());
  EXPECT_EQ(tokenizer->n_tokens(), 260);
  EXPECT_EQ(tokenizer->encode("abc ab<eot>d<tool>", Special::Parse, Bos::AsModelSays),
            (Ids{257, ' ', 256, 258, 'd', 259}));
  EXPECT_TRUE(tokenizer->is_special(258));
  EXPECT_FALSE(tokenizer->is_special(259));
  EXPECT_EQ(tokenizer->decode({257, 258, 259}, Special::Parse), "abc<tool>");
  EXPECT_EQ(tokenizer->bos(), -1);
}

TEST(TokenizerJson, EndsFromTheTemplateAndTheConfig) {
  Parts parts;
  parts.post_processor =
      R"({"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"TemplateProcessing",
    "single":[{"SpecialToken":{"id":"<eot>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[]}]})";
  const auto tokenizer = Tokenizer::from_json(parts.json());
  EXPECT_EQ(tokenizer->bos(), 258);
  EXPECT_EQ(tokenizer->eos(), -1);
  EXPECT_EQ(tokenizer->encode("x", Special::Parse, Bos::AsModelSays), (Ids{258, 'x'}));
  const auto configured =
      Tokenizer::from_json(Parts{}.json(), R"({"bos_token":{"content":"<eot>"},"eos_token":"<tool>"})");
  EXPECT_EQ(configured->bos(), 258);
  EXPECT_EQ(configured->eos(), 259);
  EXPECT_EQ(configured->encode("x", Special::Parse, Bos::AsModelSays), (Ids{'x'}));  // named, not added
  const auto none = Tokenizer::from_json(Parts{}.json(), R"({"bos_token":null,"eos_token":"nowhere"})");
  EXPECT_EQ(none->bos(), -1);
  EXPECT_EQ(none->eos(), -1);
}

TEST(TokenizerJson, OfAMergeListedTwiceTheLastRankCounts) {
  Parts parts;
  parts.vocab = Parts::alphabet() + R"(,"ab":256,"bc":257)";
  parts.added = "[]";
  parts.merges = R"(["a b","b c"])";
  EXPECT_EQ(Tokenizer::from_json(parts.json())->encode("abc", Special::Parse, Bos::Never), (Ids{256, 'c'}));
  parts.merges = R"(["a b","b c","a b"])";
  EXPECT_EQ(Tokenizer::from_json(parts.json())->encode("abc", Special::Parse, Bos::Never), (Ids{'a', 257}));
}

TEST(TokenizerJson, IdsMayHaveHoles) {
  Parts parts;
  parts.added = R"([{"id":1000,"content":"<eot>","special":true}])";
  const auto tokenizer = Tokenizer::from_json(parts.json());
  EXPECT_EQ(tokenizer->n_tokens(), 1001);
  EXPECT_EQ(tokenizer->piece(500, Special::AsText), "");
  EXPECT_EQ(tokenizer->encode("<eot>", Special::Parse, Bos::Never), (Ids{1000}));
}

void expect_bad(const std::string& json, ErrorCode code, const std::string& words) {
  try {
    Tokenizer::from_json(json);
    ADD_FAILURE() << "accepted; expected: " << words;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
  }
}

template <class Spoil>
std::string spoilt(const Spoil& spoil) {
  Parts parts;
  spoil(parts);
  return parts.json();
}

TEST(TokenizerJson, DamagedFilesAreRefused) {
  const auto bad = [](const std::string& json, const std::string& words) {
    expect_bad(json, ErrorCode::BadFile, words);
  };
  bad("", "no JSON");
  bad("{", "no JSON");
  bad("[]", "no object");
  bad("{}", "no object \"model\"");
  bad(R"({"model":{}})", "no object \"vocab\"");
  bad(R"({"model":{"vocab":{}}})", "vocabulary is empty");
  bad(R"({"model":{"vocab":{"a":0}}})", "without merges");
  bad(std::string(100, '[') + std::string(100, ']'), "no JSON");
  const std::string whole = Parts{}.json();
  for (size_t n = 0; n < whole.size(); n += 37) bad(whole.substr(0, n), "no JSON");
  bad(spoilt([](Parts& p) { p.merges = "[]"; }), "without merges");
  bad(spoilt([](Parts& p) { p.merges = R"(["a nowhere"])"; }), "\"nowhere\"");
  bad(spoilt([](Parts& p) { p.merges = R"(["a z"])"; }), "\"az\"");
  for (const char* merges : {R"([["a"]])", R"([["a","b","c"]])", R"([1])", R"([["a",2]])", "[{}]"})
    bad(spoilt([&](Parts& p) { p.merges = merges; }), "neither \"a b\" nor");
  for (const char* merges : {R"(["ab"])", R"(["a b c"])"})
    bad(spoilt([&](Parts& p) { p.merges = merges; }), "merge 0");
  bad(spoilt([](Parts& p) { p.vocab += R"(,"x":-1)"; }), "has the id -1");
  bad(spoilt([](Parts& p) { p.vocab += R"(,"xx":4294967296)"; }), "has the id 4294967296");
  bad(spoilt([](Parts& p) { p.vocab += R"(,"xx":16000000)"; }), "in a vocabulary of");
  bad(spoilt([](Parts& p) { p.vocab += R"(,"xx":1.5)"; }), "no integer");
  bad(spoilt([](Parts& p) { p.vocab += R"(,"xx":3)"; }), "id 3 is given");
  bad(spoilt([](Parts& p) { p.vocab += R"(,"a":300)"; }), "\"a\" twice");
  bad(spoilt([](Parts& p) { p.added = R"([{"id":5,"content":"<x>"}])"; }), "id 5 is given");
  bad(spoilt([](Parts& p) { p.added = R"([{"id":300,"content":"a"}])"; }), "\"a\" twice");
  bad(spoilt([](Parts& p) { p.added = R"([{"id":258}])"; }), "added token 0");
  bad(spoilt([](Parts& p) { p.model_more = R"(,"unk_token":"<nowhere>")"; }), "<nowhere>");
  bad(spoilt([](Parts& p) { p.normalizer = R"("NFC")"; }), "normalizer is no object");
  bad(spoilt([](Parts& p) { p.pre_tokenizer = R"({"type":"Sequence"})"; }), "without \"pretokenizers\"");
  bad(spoilt([](Parts& p) {
        p.post_processor = R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<no>"}}]})";
      }),
      "<no>");
  expect_bad(Parts{}.json() + "x", ErrorCode::BadFile, "no JSON");
}

TEST(TokenizerJson, WhatWouldChangeIdsIsRefusedByName) {
  const auto refused = [](const auto& spoil, const std::string& words) {
    expect_bad(spoilt(spoil), ErrorCode::Unsupported, words);
  };
  refused([](Parts& p) { p.model_more = R"(,"dropout":0.1)"; }, "dropout");
  refused([](Parts& p) { p.model_more = R"(,"end_of_word_suffix":"</w>")"; }, "end_of_word_suffix");
  refused([](Parts& p) { p.model_more = R"(,"continuing_subword_prefix":"##")"; },
          "continuing_subword_prefix");
  for (const char* type : {"Lowercase", "NFKC", "StripAccents"})
    refused([&](Parts& p) { p.normalizer = std::string(R"({"type":")") + type + "\"}"; }, type);
  refused(
      [](Parts& p) {
        p.normalizer = R"({"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Strip"}]})";
      },
      "Strip");
  for (const char* pre : {"null", R"({"type":"Whitespace"})", R"({"type":"Digits","individual_digits":true})",
                          R"({"type":"BertPreTokenizer"})"})
    refused([&](Parts& p) { p.pre_tokenizer = pre; }, "pre-tokenizer");
  refused(
      [](Parts& p) {
        p.pre_tokenizer =
            R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"a"},"behavior":"MergedWithNext","invert":false},{"type":"ByteLevel","add_prefix_space":false}]})";
      },
      "MergedWithNext");
  refused(
      [](Parts& p) {
        p.pre_tokenizer =
            R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"(?m)["},"behavior":"Isolated"},{"type":"ByteLevel","add_prefix_space":false}]})";
      },
      "pre-tokenizer pattern");
  refused([](Parts& p) { p.post_processor = R"({"type":"BertProcessing"})"; }, "BertProcessing");
  expect_bad(R"({"model":{"type":"Unigram","vocab":[["a",0]]}})", ErrorCode::Unsupported, "Unigram");
  expect_bad(R"({"model":{"type":"WordPiece","vocab":{"a":0}}})", ErrorCode::Unsupported, "supported is BPE");
}

}  // namespace
}  // namespace kv2
