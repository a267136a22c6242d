// SPDX-License-Identifier: Apache-2.0
// measure_divergence against a naive computation that keeps all logits of every window and compares
// afterwards.
#include "eval/divergence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "calibrate/calibrate.h"
#include "calibrate/sequence_walk.h"
#include "calibrate/tiny_model.h"
#include "eval/ablation.h"
#include "kv2/error.h"
#include "ops/params.h"

namespace kv2 {
namespace {

using testing::kTinyVocab;
using testing::random_tokens;
using testing::TinyModel;

CacheSpec with_windows(const char* method, int sink, int recent) {
  CacheSpec spec = CacheSpec::parse(method);
  spec.sink_tokens = sink;
  spec.recent_tokens = recent;
  return spec;
}

/// Logits of a window, token by token: [n, vocab].
std::vector<double> logits_of(Model& model, const CacheSpec& spec, std::span<const int32_t> window,
                              int64_t prompt) {
  SequenceWalk walk(model, spec, nullptr, static_cast<int64_t>(window.size()), 1);
  walk.restart(prompt);
  std::vector<float> row(kTinyVocab);
  std::vector<double> out;
  for (size_t i = 0; i < window.size(); i++) {
    walk.advance(window.subspan(i, 1), row, nullptr);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

struct Naive {
  double nll = 0;
  int64_t n = 0, same = 0;
  std::vector<double> kl;

  std::vector<int64_t> position;  // of each KL, in its window
  std::vector<bool> same_top;

  void add(const std::vector<double>& p, const std::vector<double>& q, std::span<const int32_t> window,
           int64_t first, int64_t first_nll = 0) {
    for (size_t i = 0; i < window.size(); i++) {
      const double *a = p.data() + i * kTinyVocab, *b = q.data() + i * kTinyVocab;
      double za = 0, zb = 0, divergence = 0;
      for (int t = 0; t < kTinyVocab; t++) za += std::exp(a[t]), zb += std::exp(b[t]);
      for (int t = 0; t < kTinyVocab; t++)
        divergence += std::exp(a[t]) / za * (a[t] - std::log(za) - b[t] + std::log(zb));
      if (i + 1 < window.size() && static_cast<int64_t>(i) >= first_nll)
        nll += std::log(zb) - b[window[i + 1]], n++;
      if (static_cast<int64_t>(i) < first) continue;
      kl.push_back(divergence);
      same_top.push_back(std::max_element(a, a + kTinyVocab) - a == std::max_element(b, b + kTinyVocab) - b);
      same += same_top.back();
      position.push_back(static_cast<int64_t>(i));
    }
  }
};

void expect_equal(const DivergenceResult& got, Naive want) {
  EXPECT_EQ(got.tokens, want.n);
  EXPECT_NEAR(got.ppl, std::exp(want.nll / want.n), 1e-5 * got.ppl);
  ASSERT_EQ(got.kl_tokens, static_cast<int64_t>(want.kl.size()));
  double sum = 0;
  for (const double x : want.kl) sum += x;
  const double mean = sum / want.kl.size();
  std::sort(want.kl.begin(), want.kl.end());
  EXPECT_NEAR(got.kl_mean, mean, 1e-3 * mean + 1e-7);
  const auto at = [&](double share) {
    const double x = share * (want.kl.size() - 1);
    const size_t i = static_cast<size_t>(x);
    return want.kl[i] + (x - i) * (want.kl[std::min(i + 1, want.kl.size() - 1)] - want.kl[i]);
  };
  EXPECT_NEAR(got.kl_median, at(0.5), 1e-3 * mean + 1e-12);
  EXPECT_NEAR(got.kl_p99, at(0.99), 1e-3 * want.kl.back() + 1e-12);
  EXPECT_NEAR(got.kl_max, want.kl.back(), 1e-3 * want.kl.back() + 1e-12);
  EXPECT_NEAR(got.top1, double(want.same) / want.kl.size(), 1.01 / want.kl.size());
}

TEST(Divergence, EqualsANaiveComputation) {
  TinyModel model(64);
  const std::vector<int32_t> tokens = random_tokens(520, 1);
  const std::vector<CacheSpec> specs{with_windows("bf16", 64, 256), with_windows("naive2", 0, 0),
                                     with_windows("quarot2", 64, 64)};
  DivergenceOptions options;
  options.window = 230;  // 230, 230 and 60 tokens: the last has no history, but a perplexity
  options.chunk_tokens = 50;
  const auto got = measure_divergence(*model, tokens, specs, nullptr, options);
  ASSERT_EQ(got.size(), 3u);
  Naive naive[3];
  for (size_t begin = 0; begin < tokens.size(); begin += 230) {
    const auto window = std::span(tokens).subspan(begin, std::min<size_t>(230, tokens.size() - begin));
    const std::vector<double> bf16 = logits_of(*model, specs[0], window, 0);
    for (int m = 0; m < 3; m++)  // 192: the largest of the methods' first positions, (1 + 1 + 1)·64
      naive[m].add(bf16, m == 0 ? bf16 : logits_of(*model, specs[m], window, 0), window, 192);
  }
  for (int m = 0; m < 3; m++) {
    expect_equal(got[m], naive[m]);
    EXPECT_EQ(got[m].windows, 3);
  }
  EXPECT_EQ(got[0].kl_max, 0.0);
  EXPECT_EQ(got[0].top1, 1.0);
  EXPECT_EQ(got[0].kl_tokens, 2 * (230 - 192));
  EXPECT_GT(got[1].kl_mean, 1e-4) << "quantization must show, or this test shows nothing";
  EXPECT_EQ(got[0].history_bits, 16.0);
  EXPECT_EQ(got[1].history_bits, 4.0);  // 2 + 32 / 16 at head_dim 16
  EXPECT_GT(got[0].kv_bytes, got[1].kv_bytes);
  EXPECT_EQ(got[2].method, "quarot2");
  EXPECT_EQ(got[2].sink, 64);
}

TEST(Divergence, SlidingWindowsScoreEveryTokenOnce) {
  TinyModel model(64);
  const std::vector<int32_t> tokens = random_tokens(430, 7);
  const std::vector<CacheSpec> specs{with_windows("quarot2", 0, 64)};
  const auto got = measure_divergence(*model, tokens, specs, nullptr,
                                      {.window = 200, .stride = 70, .chunk_tokens = 33})[0];
  Naive naive;
  int64_t scored = 0, windows = 0;
  for (int64_t begin = 0; scored < 430; begin += 70, windows++) {
    const auto window = std::span(tokens).subspan(begin, std::min<int64_t>(200, 430 - begin));
    naive.add(logits_of(*model, CacheSpec::parse("bf16"), window, 0), logits_of(*model, specs[0], window, 0),
              window, std::max<int64_t>(128, scored - begin), std::max<int64_t>(0, scored - 1 - begin));
    scored = begin + static_cast<int64_t>(window.size());
  }
  expect_equal(got, naive);
  EXPECT_EQ(got.tokens, 429) << "every token but the first is predicted once";
  EXPECT_EQ(got.kl_tokens, 430 - 128) << "and its position compared once";
  EXPECT_EQ(got.windows, windows);
  EXPECT_EQ(got.stride, 70);
}

TEST(Divergence, BucketsByPosition) {
  TinyModel model(64);
  const std::vector<int32_t> tokens = random_tokens(700, 8);
  const std::vector<CacheSpec> specs{with_windows("quarot2", 0, 64)};
  const auto got = measure_divergence(*model, tokens, specs, nullptr, {})[0];
  Naive naive;
  naive.add(logits_of(*model, CacheSpec::parse("bf16"), tokens, 0), logits_of(*model, specs[0], tokens, 0),
            tokens, 128);
  ASSERT_EQ(got.buckets.size(), 2u);
  int64_t flips = 0;
  for (const DivergenceBucket& b : got.buckets) {
    double sum = 0, largest = 0;
    int64_t n = 0, differ = 0;
    for (size_t i = 0; i < naive.kl.size(); i++)
      if (naive.position[i] >= b.begin && naive.position[i] < b.end) {
        sum += naive.kl[i], n++, differ += !naive.same_top[i];
        largest = std::max(largest, naive.kl[i]);
      }
    EXPECT_EQ(b.tokens, n);
    EXPECT_NEAR(b.kl_mean, sum / static_cast<double>(n), 1e-3 * b.kl_mean);
    EXPECT_NEAR(b.kl_max, largest, 1e-3 * b.kl_max);
    EXPECT_NEAR(b.flips, differ, 1);
    flips += b.flips;
  }
  EXPECT_EQ(got.buckets[0].tokens, 512 - 128);
  EXPECT_EQ(got.buckets[1].begin, 512);
  EXPECT_EQ(got.buckets[1].end, 1024);
  EXPECT_EQ(flips, got.flips);
  EXPECT_EQ(got.flips, got.kl_tokens - std::llround(got.top1 * static_cast<double>(got.kl_tokens)));
  EXPECT_NE(to_bucket_table({got}).find("512-1023"), std::string::npos);
}

TEST(Divergence, ChunksAndThreadsDoNotMatter) {
  TinyModel model(100);
  const std::vector<int32_t> tokens = random_tokens(300, 2);
  const std::vector<CacheSpec> specs{with_windows("quarot2", 0, 64)};
  DivergenceOptions a, b;
  a.chunk_tokens = 100, a.n_threads = 1;
  b.chunk_tokens = 7, b.n_threads = 3;
  const auto x = measure_divergence(*model, tokens, specs, nullptr, a)[0];
  const auto y = measure_divergence(*model, tokens, specs, nullptr, b)[0];
  EXPECT_EQ(x.ppl, y.ppl);
  EXPECT_EQ(x.kl_mean, y.kl_mean);
  EXPECT_EQ(x.kl_max, y.kl_max);
  EXPECT_EQ(x.kl_tokens, 300 - 128);
  EXPECT_GT(x.kl_mean, 0);
}

TEST(Divergence, ExactPrefillScoresBehindThePrompt) {
  TinyModel model(64);
  const std::vector<int32_t> tokens = random_tokens(401, 3);
  std::vector<CacheSpec> specs{with_windows("quarot2", 0, 0), with_windows("quarot2", 0, 0)};
  specs[1].prefill = PrefillPolicy::Exact;
  const auto got = measure_divergence(*model, tokens, specs, nullptr, {});
  const int64_t prompt = 200;
  EXPECT_EQ(got[1].kl_tokens, 401 - prompt);
  EXPECT_EQ(got[1].prefill, "exact");
  const std::vector<double> bf16 = logits_of(*model, CacheSpec::parse("bf16"), tokens, 0);
  for (int m = 0; m < 2; m++) {
    Naive naive;
    naive.add(bf16, logits_of(*model, specs[m], tokens, prompt), tokens, prompt);
    expect_equal(got[m], naive);
  }
  EXPECT_NE(got[0].kl_mean, got[1].kl_mean);
}

std::string refusal(Model& model, int64_t n_tokens, const CacheSpec& spec, const DivergenceOptions& options) {
  try {
    measure_divergence(model, random_tokens(n_tokens, 4), {spec}, nullptr, options);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::BadArgument) << e.what();
    return e.what();
  }
  return "";
}

TEST(Divergence, SaysWhatIsWrong) {
  TinyModel model(64);
  const std::string empty = refusal(*model, 384, CacheSpec::parse("quarot2"), {});
  EXPECT_NE(empty.find("385"), std::string::npos) << empty;
  DivergenceOptions wide;
  wide.window = testing::kTinyContext + 1;
  EXPECT_NE(refusal(*model, 1000, CacheSpec::parse("quarot2"), wide).find("context"), std::string::npos);
  EXPECT_NE(refusal(*model, 600, CacheSpec::parse("oscar2"), {}).find("calibrate"), std::string::npos);
  EXPECT_NE(refusal(*model, 600, CacheSpec::parse("quarot2"), {.window = 400, .stride = 401}).find("401"),
            std::string::npos);
  EXPECT_NE(refusal(*model, 1, CacheSpec::parse("bf16"), {}), "");
  try {
    measure_divergence(*model, {1, 2, kTinyVocab}, {CacheSpec::parse("bf16")}, nullptr, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::BadArgument);
  }
}

TEST(Divergence, JsonHasTheAgreedNames) {
  DivergenceResult r;
  r.method = "quarot2";
  r.ppl = 12.5;
  r.kv_bytes = 4096;
  const auto j = nlohmann::json::parse(to_json(r));
  for (const char* key :
       {"method", "history_bits", "all_in_bits", "kv_bytes", "tokens", "ppl", "kl_mean", "kl_median",
        "kl_p99", "kl_max", "top1", "kl_tokens", "windows", "sink", "recent", "prefill"})
    EXPECT_TRUE(j.contains(key)) << key;
  EXPECT_EQ(j["ppl"], 12.5);
  EXPECT_EQ(j["kv_bytes"], 4096);
  EXPECT_EQ(to_json(r).find('\n'), std::string::npos);
  EXPECT_NE(to_table({r}).find("quarot2"), std::string::npos);
}

TEST(Ablation, HasEveryTable) {
  TinyModel model(128);
  const Calibration calibration = calibrate(
      *model, random_tokens(500, 5), {.n_tokens = 300, .n_held_out = 200, .window = 128, .n_threads = 2});
  DivergenceOptions options;
  options.chunk_tokens = 128;
  const std::string report =
      ablation_report(*model, random_tokens(420, 6), calibration, options, "the command");
  for (const char* text :
       {"\nthe command\n", "## Methods", "## Windows", "| 0 / 256 |", "## Rotation, no clip", "| U·H |",
        "## Rotation, groups of head_dim/2", "| per layer |", "self-covariance", "| search |", "0.96 / 0.92",
        "| exact |", "## Prefill"})
    EXPECT_NE(report.find(text), std::string::npos) << text;
  EXPECT_EQ(report.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace kv2
