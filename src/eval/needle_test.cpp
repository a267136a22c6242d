// SPDX-License-Identifier: Apache-2.0
// needle_exact against greedy decoding token by token, and write_logits against a walk of single tokens.
#include "eval/needle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/file.h"
#include "calibrate/sequence_walk.h"
#include "calibrate/tiny_model.h"
#include "eval/logits.h"
#include "kv2/error.h"

namespace kv2 {
namespace {

using testing::kTinyVocab;
using testing::random_tokens;
using testing::TinyModel;

CacheSpec spec_of(const char* method, PrefillPolicy prefill) {
  CacheSpec spec = CacheSpec::parse(method);
  spec.sink_tokens = 0;
  spec.recent_tokens = 64;
  spec.prefill = prefill;
  return spec;
}

/// What greedy decoding says after prefix and question, one token per forward.
std::vector<int32_t> greedy(Model& model, const CacheSpec& spec, std::vector<int32_t> text, int n) {
  SequenceWalk walk(model, spec, nullptr, static_cast<int64_t>(text.size()) + n, 1);
  walk.restart(static_cast<int64_t>(text.size()));
  std::vector<float> row(kTinyVocab);
  std::vector<int32_t> out;
  for (size_t i = 0; out.size() < static_cast<size_t>(n); i++) {
    walk.advance(std::span(text).subspan(i, 1), row, nullptr);
    if (i + 1 < text.size()) continue;
    out.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
    text.push_back(out.back());
  }
  return out;
}

TEST(Needle, AgreesWithGreedyDecoding) {
  TinyModel model(30);  // prefix, question and answer all cross chunks
  const std::vector<int32_t> prefix = random_tokens(211, 1);
  for (const auto& [method, prefill] : {std::pair{"bf16", PrefillPolicy::Windowed},
                                        {"quarot2", PrefillPolicy::Windowed},
                                        {"naive2", PrefillPolicy::Windowed},
                                        {"naive2", PrefillPolicy::Exact}}) {
    const CacheSpec spec = spec_of(method, prefill);
    std::vector<NeedleQuestion> questions;
    for (const int length : {1, 5, 40}) {
      NeedleQuestion q{random_tokens(length, 10 + length), {}};
      std::vector<int32_t> text(prefix);
      text.insert(text.end(), q.question.begin(), q.question.end());
      q.answer = greedy(*model, spec, text, 35);
      questions.push_back(q);
      for (const size_t wrong : {size_t{0}, size_t{20}, q.answer.size() - 1}) {
        NeedleQuestion bad = q;
        bad.answer[wrong] = (bad.answer[wrong] + 1) % kTinyVocab;
        questions.push_back(bad);
      }
    }
    EXPECT_EQ(needle_exact(*model, spec, nullptr, prefix, questions),
              (std::vector<uint8_t>{1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0}))
        << method;
  }
}

TEST(Needle, WorksWithoutAPrefixAndRefusesNonsense) {
  TinyModel model(64);
  const CacheSpec spec = spec_of("bf16", PrefillPolicy::Windowed);
  const std::vector<int32_t> question = random_tokens(9, 3);
  EXPECT_EQ(needle_exact(*model, spec, nullptr, {}, {{question, greedy(*model, spec, question, 4)}}),
            (std::vector<uint8_t>{1}));
  EXPECT_THROW(needle_exact(*model, spec, nullptr, {}, {{{}, {1}}}), Error);
  EXPECT_THROW(needle_exact(*model, spec, nullptr, {}, {{{1}, {}}}), Error);
  EXPECT_THROW(needle_exact(*model, spec, nullptr, {}, {{{1}, {kTinyVocab}}}), Error);
  EXPECT_THROW(needle_exact(*model, spec, nullptr, random_tokens(testing::kTinyContext, 1), {{{1}, {1}}}),
               Error);
}

TEST(Logits, AreThoseOfSingleTokens) {
  TinyModel model(64);
  const std::vector<int32_t> tokens = random_tokens(259, 4);
  const CacheSpec spec = spec_of("quarot2", PrefillPolicy::Windowed);
  const std::string path = model.path("logits.npy");
  write_logits(*model, spec, nullptr, tokens, path);
  const std::string bytes = read_file(path, size_t{1} << 26);
  const size_t values = tokens.size() * kTinyVocab;
  ASSERT_EQ(bytes.size() % 64, values * 4 % 64);
  ASSERT_GT(bytes.size(), values * 4);
  std::vector<float> got(values), row(kTinyVocab);
  std::memcpy(got.data(), bytes.data() + bytes.size() - values * 4, values * 4);
  EXPECT_NE(bytes.find("'shape': (259, 61)"), std::string::npos);
  SequenceWalk walk(*model, spec, nullptr, 259, 1);
  walk.restart(0);
  for (size_t i = 0; i < tokens.size(); i++) {
    walk.advance(std::span(tokens).subspan(i, 1), row, nullptr);
    for (int t = 0; t < kTinyVocab; t++) ASSERT_NEAR(got[i * kTinyVocab + t], row[t], 1e-4) << i;
  }
  EXPECT_THROW(write_logits(*model, spec, nullptr, {}, path), Error);
  EXPECT_THROW(write_logits(*model, spec, nullptr, random_tokens(testing::kTinyContext + 1, 1), path), Error);
}

}  // namespace
}  // namespace kv2
