// SPDX-License-Identifier: Apache-2.0
// The consequences of the rule of visibility, bit by bit, on the CPU backend (one kernel family): a sequence
// has the same logits and the same page bytes, full and packed, whether it came in one piece, in chunks,
// token by token, in a batch with others, through a fork, through a prefix hit, or on another number of
// threads.
//
// `exact` prefill promises less: a prompt has the same logits and pages for any chunking, since all its
// queries read bf16, and what follows it then equals too; token-by-token decode of the prompt and prefix hits
// are not promised.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "engine/device.h"
#include "support.h"

namespace kv2::test {
namespace {

constexpr int kMaxRows = 768;
constexpr int64_t kContext = 1024;

RandomModel narrow() {
  return {.architecture = "Qwen3ForCausalLM", .n_layers = 3, .head_dim = 64, .seed = 11};
}
RandomModel wide() {
  return {.architecture = "Qwen2ForCausalLM",
          .n_layers = 2,
          .hidden = 80,
          .n_heads = 6,
          .n_kv_heads = 2,
          .head_dim = 128,
          .intermediate = 112,
          .vocab = 61,
          .seed = 12};
}

/// A backend and models on it, kept for all cases: loading is dearer than a case.
struct Device {
  Device(int n_threads, LinearPrecision precision)
      : backend(open_device({.device = "cpu", .n_threads = n_threads, .linear_precision = precision})) {}
  Model& model(const std::string& path) {
    auto& m = models[path];
    if (!m) m = Model::load(path, *backend, kMaxRows);
    return *m;
  }
  std::unique_ptr<Backend> backend;
  std::map<std::string, std::unique_ptr<Model>> models;
};
Device& device(int n_threads, LinearPrecision precision) {
  static std::map<std::pair<int, LinearPrecision>, std::unique_ptr<Device>> devices;
  auto& d = devices[{n_threads, precision}];
  if (!d) d = std::make_unique<Device>(n_threads, precision);
  return *d;
}
const std::string& narrow_path() {
  static const std::string path = write_random_model(narrow());
  return path;
}
const std::string& wide_path() {
  static const std::string path = write_random_model(wide());
  return path;
}

struct Case {
  std::string name, method;
  bool wide;
  int sink_tokens, recent_tokens;
  LinearPrecision precision = LinearPrecision::Auto;
};

std::string fmt(const char* a, int64_t x, const char* b, int64_t y) {
  return std::string(a) + " " + std::to_string(x) + ", " + b + " " + std::to_string(y);
}

struct Result {
  std::vector<float> logits;
  PageBytes pages;
};

void expect_same(const Result& got, const Result& expected, const std::string& what) {
  ASSERT_EQ(got.logits.size(), expected.logits.size()) << what;
  EXPECT_EQ(std::memcmp(got.logits.data(), expected.logits.data(), got.logits.size() * sizeof(float)), 0)
      << what << ": logits differ first at value "
      << std::mismatch(got.logits.begin(), got.logits.end(), expected.logits.begin()).first -
             got.logits.begin()
      << " of " << got.logits.size();
  EXPECT_EQ(got.pages.full.size(), expected.pages.full.size()) << what;
  EXPECT_EQ(got.pages.packed.size(), expected.pages.packed.size()) << what;
  EXPECT_TRUE(got.pages.full == expected.pages.full) << what << ": bytes of full pages differ";
  EXPECT_TRUE(got.pages.packed == expected.pages.packed) << what << ": bytes of packed pages differ";
}

class Equality : public testing::TestWithParam<Case> {
 protected:
  Model& model(int n_threads = 2) {
    return device(n_threads, GetParam().precision).model(GetParam().wide ? wide_path() : narrow_path());
  }
  CacheSpec spec(PrefillPolicy policy = PrefillPolicy::Windowed) const {
    CacheSpec s = CacheSpec::parse(GetParam().method);
    s.sink_tokens = GetParam().sink_tokens;
    s.recent_tokens = GetParam().recent_tokens;
    s.prefill = policy;
    return s;
  }
  static CacheCapacity capacity(int n_sequences) {
    return {.context_tokens = kContext, .n_sequences = n_sequences, .chunk_tokens = kMaxRows};
  }
  std::vector<int32_t> tokens(int64_t n, uint64_t seed = 5) {
    return random_tokens(n, model().config().vocab, seed);
  }

  Result run(Model& m, const std::vector<int32_t>& t, int64_t chunk) {
    Runner runner(m, spec(), capacity(1));
    const SequenceId s = runner.open();
    Result r;
    r.logits = runner.feed(s, t, chunk, 0);
    r.pages = page_bytes(runner.cache(), s);
    return r;
  }
  Result whole(const std::vector<int32_t>& t) { return run(model(), t, kMaxRows); }

  /// Around every boundary: nothing, within the sink, at its end, before any history, at the first pages of
  /// history.
  std::vector<int64_t> lengths() const {
    std::vector<int64_t> out{1, 2, 40};
    const int64_t sink = GetParam().sink_tokens, recent = GetParam().recent_tokens;
    for (const int64_t edge :
         {sink, sink + recent, sink + recent + 64, sink + recent + 128, sink + recent + 192})
      for (const int64_t n : {edge - 1, edge, edge + 1})
        if (n >= 1) out.push_back(n);
    out.push_back(sink + recent + 64 + 37);
    return out;
  }
};

TEST_P(Equality, ChunksOfAnySizeEqualOnePiece) {
  for (const int64_t n : lengths()) {
    const auto t = tokens(n);
    const Result expected = whole(t);
    for (const int64_t chunk : {7, 64, 100})
      expect_same(run(model(), t, chunk), expected, fmt("length", n, "chunk", chunk));
  }
}

TEST_P(Equality, TokenByTokenEqualsOnePiece) {
  for (const int64_t n : lengths()) {
    const auto t = tokens(n);
    expect_same(run(model(), t, 1), whole(t), fmt("length", n, "chunk", 1));
  }
}

TEST_P(Equality, PrefillThenDecodeEqualsOnePiece) {
  for (const int64_t n : lengths()) {
    const auto t = tokens(n + 70);
    Runner runner(model(), spec(), capacity(1));
    const SequenceId s = runner.open();
    Result r;
    r.logits = runner.feed(s, std::span(t).first(n), kMaxRows, 0);
    const auto rest = runner.feed(s, std::span(t).subspan(n), 1, 0);
    r.logits.insert(r.logits.end(), rest.begin(), rest.end());
    r.pages = page_bytes(runner.cache(), s);
    expect_same(r, whole(t), fmt("prompt", n, "decoded", 70));
  }
}

TEST_P(Equality, InABatchWithOthersEqualsAlone) {
  for (const int64_t n : lengths()) {
    const auto t = tokens(n), a = tokens(700, 6), b = tokens(700, 7);
    Runner runner(model(), spec(), capacity(3));
    const SequenceId before = runner.open(), s = runner.open(), after = runner.open();
    (void)runner.feed(before, std::span(a).first(450), kMaxRows, 0);  // has a history; decodes in the batch
    Result r;
    const size_t vocab = model().config().vocab;
    int64_t at = 0, n_a = 450, n_b = 0;
    for (int step = 0; at < n; step++) {
      const int64_t rows = std::min<int64_t>(n - at, 1 + step * 29 % 83), rows_b = 1 + step * 17 % 5;
      const auto logits = runner.step({{before, std::span(a).subspan(n_a, 1)},
                                       {s, std::span(t).subspan(at, rows)},
                                       {after, std::span(b).subspan(n_b, rows_b)}},
                                      0);
      r.logits.insert(r.logits.end(), logits.begin() + vocab, logits.begin() + (1 + rows) * vocab);
      at += rows, n_a += 1, n_b += rows_b;
    }
    r.pages = page_bytes(runner.cache(), s);
    expect_same(r, whole(t), fmt("length", n, "in a batch of", 3));
  }
}

TEST_P(Equality, AForkAndItsOriginEqualSequencesOfTheirOwn) {
  for (const int64_t n : lengths()) {
    auto t = tokens(n + 80);
    Runner runner(model(), spec(), capacity(2));
    const SequenceId origin = runner.open();
    const auto shared = runner.feed(origin, std::span(t).first(n), 100, 0);
    const auto forked = runner.cache().fork(origin);
    ASSERT_TRUE(forked.has_value());
    auto other = t;
    for (int64_t i = n; i < n + 80; i++) other[i] = (other[i] + 1) % model().config().vocab;
    for (const auto& [sequence, text] : {std::pair{origin, t}, {*forked, other}}) {
      Result r;
      r.logits = shared;
      const auto rest = runner.feed(sequence, std::span(text).subspan(n), 9, 0);
      r.logits.insert(r.logits.end(), rest.begin(), rest.end());
      r.pages = page_bytes(runner.cache(), sequence);
      expect_same(r, whole(text),
                  fmt(sequence == origin ? "origin of a fork at" : "fork at", n, "continued by", 80));
    }
  }
}

TEST_P(Equality, APrefixHitEqualsNoHit) {
  for (const int64_t n : lengths()) {
    const auto t = tokens(n + 75);
    Runner runner(model(), spec(), capacity(2));
    const SequenceId first = runner.open();
    (void)runner.feed(first, std::span(t).first(n), 100, 0);
    runner.cache().remember_prefix(first, std::span(t).first(n));
    const SequenceId second = runner.open();
    const int64_t hit = runner.cache().attach_prefix(second, t);
    EXPECT_EQ(hit, n / kPageTokens * kPageTokens) << "the first sequence lives: all its pages are there";
    const Result expected = whole(t);
    Result r;
    r.logits.assign(expected.logits.begin(), expected.logits.begin() + hit * model().config().vocab);
    const auto rest = runner.feed(second, std::span(t).subspan(hit), kMaxRows, 0);
    r.logits.insert(r.logits.end(), rest.begin(), rest.end());
    r.pages = page_bytes(runner.cache(), second);
    expect_same(r, expected, fmt("prefix of", n, "hit", hit));
  }
}

TEST_P(Equality, TheNumberOfThreadsChangesNothing) {
  const int64_t n = GetParam().sink_tokens + GetParam().recent_tokens + 64 + 37;
  const auto t = tokens(n);
  for (const int64_t chunk : {int64_t{1}, int64_t{100}, int64_t{kMaxRows}}) {
    const Result expected = run(model(1), t, chunk);
    for (const int n_threads : {2, 3})
      expect_same(run(model(n_threads), t, chunk), expected, fmt("threads", n_threads, "chunk", chunk));
  }
}

TEST_P(Equality, ExactPromptsDoNotDependOnChunks) {
  for (const int64_t n : lengths()) {
    const auto t = tokens(n + 66);
    const auto exact = [&](int64_t chunk) {
      Runner runner(model(), spec(PrefillPolicy::Exact), capacity(1));
      const SequenceId s = runner.open();
      Result r;
      r.logits = runner.feed(s, std::span(t).first(n), chunk, n);
      const auto rest = runner.feed(s, std::span(t).subspan(n), 1, n);
      r.logits.insert(r.logits.end(), rest.begin(), rest.end());
      r.pages = page_bytes(runner.cache(), s);
      return r;
    };
    const Result expected = exact(kMaxRows);
    for (const int64_t chunk : {7, 64, 100})
      expect_same(exact(chunk), expected, fmt("exact prompt", n, "chunk", chunk));
  }
}

/// Prompts are read in bf16 alone: without a transform, `exact` gives the very logits of a bf16 cache.
TEST_P(Equality, ExactPromptsWithoutATransformEqualABf16Cache) {
  const Method method = CacheSpec::parse(GetParam().method).method;
  if (method.transform != TransformKind::Identity) return;  // stored in another basis: close, not equal
  const int64_t n = GetParam().sink_tokens + GetParam().recent_tokens + 150;
  const auto t = tokens(n);
  Runner exact(model(), spec(PrefillPolicy::Exact), capacity(1)), full(model(), CacheSpec{}, capacity(1));
  EXPECT_EQ(exact.feed(exact.open(), t, 100, n), full.feed(full.open(), t, 100, 0));
}

/// The other side of these tests: 2-bit pages do change logits, and only from the first query with a history
/// on.
TEST_P(Equality, PackedPagesChangeLogitsFromTheFirstHistoryOnAndNotBefore) {
  const int64_t first = GetParam().sink_tokens + GetParam().recent_tokens + 64, n = first + 64;
  const auto t = tokens(n);
  CacheSpec everything_recent = spec();
  everything_recent.recent_tokens = 960;
  Runner runner(model(), everything_recent, capacity(1));
  const auto full = runner.feed(runner.open(), t, kMaxRows, 0), packed = whole(t).logits;
  const auto at =
      static_cast<int64_t>(std::mismatch(full.begin(), full.end(), packed.begin()).first - full.begin());
  if (CacheSpec::parse(GetParam().method).method.quantized()) {
    EXPECT_EQ(at / model().config().vocab, first);
  } else {
    EXPECT_EQ(at, static_cast<int64_t>(full.size()));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Methods, Equality,
    testing::Values(Case{"bf16_default", "bf16", false, 64, 256},
                    Case{"naive2_small", "naive2", false, 64, 64},
                    Case{"naive2_group32", "naive2:group=32", true, 64, 128},
                    Case{"quarot2_small", "quarot2", true, 64, 64},
                    Case{"quarot2_default", "quarot2", false, 64, 256},
                    Case{"quarot2_none", "quarot2", false, 0, 0},
                    Case{"naive2_no_sink", "naive2", false, 0, 128}, Case{"omni2", "omni2", false, 64, 64},
                    Case{"mixed", "naive2:bits-k=3,layers=0=int8+-1=bf16", false, 0, 64},
                    Case{"tq3_qjl", "tq3:qjl=k", false, 64, 0},
                    Case{"quarot2_f32", "quarot2", false, 64, 128, LinearPrecision::F32}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kv2::test
