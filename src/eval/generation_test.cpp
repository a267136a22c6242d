// SPDX-License-Identifier: Apache-2.0
#include "eval/generation.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "calibrate/sequence_walk.h"
#include "calibrate/tiny_model.h"
#include "eval/sign_test.h"
#include "kv2/error.h"

namespace kv2 {
namespace {

using testing::kTinyEos;
using testing::kTinyVocab;
using testing::random_tokens;
using testing::TinyModel;

std::vector<int32_t> counting(int n, int from) {
  std::vector<int32_t> out;
  for (int i = 0; i < n; i++) out.push_back(from + i);
  return out;
}

TEST(Generation, ComparesTextsWithBf16) {
  std::vector<int32_t> loop(300, 7);
  const GeneratedTexts bf16 = {counting(10, 100), counting(8, 50), loop, counting(4, 0)};
  GeneratedTexts texts = bf16;
  texts[0][3] = 999;             // leaves after 3 tokens, comes back
  texts[1].push_back(kTinyEos);  // equal but for the end, which is no part of the text
  texts[2] = counting(300, 500);
  GenerationResult r;
  compare_texts(texts, bf16, {kTinyEos}, r);
  EXPECT_EQ(r.prompts, 4);
  EXPECT_EQ(r.tokens, 10 + 9 + 300 + 4);
  EXPECT_EQ(r.ended, 1);
  EXPECT_EQ(r.same, 1);
  EXPECT_EQ(r.left_mean, (3 + 8 + 0 + 4) / 4.0);
  EXPECT_EQ(r.left_median, 3.5);
  EXPECT_DOUBLE_EQ(r.agree, (9 + 8 + 0 + 4) / 322.0);
  EXPECT_EQ(r.collapsed, 0);
  EXPECT_EQ(r.only_here, 0);
  EXPECT_EQ(r.only_bf16, 1);
  EXPECT_EQ(r.collapsed_p, 1);
  GenerationResult turned;
  compare_texts(bf16, texts, {kTinyEos}, turned);
  EXPECT_EQ(turned.collapsed, 1);
  EXPECT_EQ(turned.only_here, 1);
  EXPECT_EQ(turned.only_bf16, 0);
  EXPECT_EQ(turned.longest_loop, 75);
  EXPECT_LT(turned.distinct_4, 1);
}

TEST(Generation, CountsOfOneSideHaveTheirSignTest) {
  const std::vector<int32_t> loop(300, 7);
  const GeneratedTexts bf16 = {loop, loop, counting(10, 100)};
  const GeneratedTexts texts = {counting(300, 500), counting(300, 900), counting(10, 100)};
  GenerationResult r;
  compare_texts(texts, bf16, {kTinyEos}, r);
  EXPECT_EQ(r.only_bf16, 2);
  EXPECT_DOUBLE_EQ(r.collapsed_p, 0.5);
  EXPECT_EQ(r.stuck_only_bf16, 2);
  EXPECT_DOUBLE_EQ(r.stuck_p, 0.5);
}

TEST(SignTest, IsTheBinomialTail) {
  EXPECT_EQ(sign_test(0, 0), 1);
  EXPECT_EQ(sign_test(3, 3), 1);
  EXPECT_NEAR(sign_test(2, 1), 1, 1e-12);
  EXPECT_NEAR(sign_test(2, 0), 0.5, 1e-12);
  EXPECT_NEAR(sign_test(7, 0), 2.0 / 128, 1e-12);
  EXPECT_NEAR(sign_test(0, 7), 2.0 / 128, 1e-12);
  EXPECT_NEAR(sign_test(12, 4), 2.0 * (1 + 16 + 120 + 560 + 1820) / 65536, 1e-12);
  EXPECT_NEAR(sign_test(600, 500), 0.0028, 0.0001);
}

TEST(Generation, IsGreedyAndTheSameInAnyBatch) {
  TinyModel model(32);
  CacheSpec naive = CacheSpec::parse("naive2");
  naive.sink_tokens = 0;
  naive.recent_tokens = 64;
  const std::vector<CacheSpec> specs = {naive, CacheSpec::parse("bf16")};
  const std::vector<std::vector<int32_t>> prompts = {random_tokens(150, 1), random_tokens(3, 2),
                                                     random_tokens(200, 3)};
  GenerationOptions options{.max_tokens = 40, .batch = 3, .chunk_tokens = 32, .ignore_eos = true};
  const auto together = measure_generation(*model, specs, nullptr, prompts, options, {});
  options.batch = 1;
  int reported = 0;
  const auto alone =
      measure_generation(*model, specs, nullptr, prompts, options, [&](const GenerationRun&) { reported++; });
  EXPECT_EQ(reported, 2);
  ASSERT_EQ(together.size(), 2u);
  for (size_t i = 0; i < 2; i++) EXPECT_EQ(together[i].texts, alone[i].texts) << i;
  EXPECT_EQ(together[1].result.same, 3);
  EXPECT_EQ(together[1].result.agree, 1);
  EXPECT_LT(together[0].result.agree, 1) << "2-bit keys of random weights change the text";

  SequenceWalk walk(*model, naive, nullptr, 190, 1);
  walk.restart(150);
  std::vector<int32_t> text = prompts[0];
  std::vector<float> row(kTinyVocab);
  for (size_t i = 0; text.size() < 190; i++) {
    walk.advance(std::span(text).subspan(i, 1), row, nullptr);
    if (i + 1 == text.size())
      text.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
  }
  EXPECT_EQ(together[0].texts[0], std::vector<int32_t>(text.begin() + 150, text.end()));
}

TEST(Generation, RefusesWhatItCannotDo) {
  TinyModel model(32);
  const std::vector<CacheSpec> specs = {CacheSpec::parse("naive2")};
  const GenerationOptions options{.max_tokens = 40};
  EXPECT_THROW(measure_generation(*model, specs, nullptr, {}, options, {}), Error);
  EXPECT_THROW(measure_generation(*model, specs, nullptr, {{}}, options, {}), Error);
  EXPECT_THROW(measure_generation(*model, specs, nullptr, {{kTinyVocab}}, options, {}), Error);
  EXPECT_THROW(
      measure_generation(*model, specs, nullptr, {random_tokens(testing::kTinyContext - 20, 1)}, options, {}),
      Error);
}

// Up to 384 positions a method of default windows is bf16.
TEST(Generation, RefusesTextsThatReadNoCode) {
  TinyModel model(32);
  std::vector<CacheSpec> specs = {CacheSpec::parse("bf16"), CacheSpec::parse("naive2")};
  specs[1].sink_tokens = 64;
  specs[1].recent_tokens = 0;  // history from 128 on
  const auto with = [&](int n_prompt, int64_t max_tokens, PrefillPolicy prefill) -> std::string {
    specs[1].prefill = prefill;
    try {
      measure_generation(*model, specs, nullptr, {random_tokens(n_prompt, 1), random_tokens(5, 2)},
                         {.max_tokens = max_tokens, .ignore_eos = true}, {});
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::BadArgument);
      return e.what();
    }
    return "";
  };
  const std::string short_of = with(100, 29, PrefillPolicy::Windowed);
  for (const char* part : {"naive2", "position 128", "has 100", "30 or more", "--max-tokens", "--sink"})
    EXPECT_NE(short_of.find(part), std::string::npos) << part << " in: " << short_of;
  EXPECT_EQ(with(100, 30, PrefillPolicy::Windowed), "");
  EXPECT_EQ(with(200, 1, PrefillPolicy::Windowed), "");
  EXPECT_NE(with(200, 1, PrefillPolicy::Exact).find("2 or more"), std::string::npos);
  EXPECT_EQ(with(200, 2, PrefillPolicy::Exact), "");
}

}  // namespace
}  // namespace kv2
