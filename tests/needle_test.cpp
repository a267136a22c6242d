// SPDX-License-Identifier: Apache-2.0
// Retrieval through the whole stack on needle-15m (head_dim 128): single needles in noise, bf16 and 2-bit
// caches after a calibration on text of the model's own kind. The model lies beside the project, not in it;
// its tests say so plainly when it is absent.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "calibrate/calibrate.h"
#include "engine/device.h"
#include "engine/engine.h"
#include "eval/needle.h"
#include "model/model.h"

namespace kv2 {
namespace {

constexpr int kMaxRows = 512;
const char* const kNoise[] = {
    " The rain is cold.",          " The river was deep and slow.", " Come back with the paper.",
    " The hill is far from here.", " The wind will turn.",          " The light is low.",
    " The old tree was tall.",     " Some snow is on the roof.",    " The moon is bright."};
const char* const kWords[] = {"river", "stone", "paper", "light", "tree", "snow", "moon", "wind"};

/// Haystacks of exactly n tokens with one needle, and the question behind them.
class Haystacks {
 public:
  Haystacks(const Tokenizer& tokenizer, uint32_t seed) : tokenizer_(tokenizer), rng_(seed) {}

  struct Case {
    std::vector<int32_t> prefix;
    NeedleQuestion question;
  };
  Case make(size_t n_tokens, double depth) {
    const std::string key = pick(kWords) + "-" + pick(kWords);
    std::string number;
    for (int i = 0; i < 7; i++) number += static_cast<char>('0' + rng_() % 10);
    const auto needle = ids(" One of the special magic numbers for " + key + " is: " + number + ".");
    Case c;
    c.prefix =
        ids("Some special magic numbers are hidden within the following text. Make sure to memorize it. I "
            "will quiz "
            "you about the numbers afterwards.\n");
    bool hidden = false;
    while (c.prefix.size() + needle.size() < n_tokens || !hidden) {
      if (!hidden && static_cast<double>(c.prefix.size()) >= depth * static_cast<double>(n_tokens)) {
        c.prefix.insert(c.prefix.end(), needle.begin(), needle.end());
        hidden = true;
      }
      const auto sentence = ids(kNoise[rng_() % std::size(kNoise)]);
      c.prefix.insert(c.prefix.end(), sentence.begin(), sentence.end());
    }
    c.question.question = ids("\nWhat is the special magic number for " + key +
                              " mentioned in the provided text? The special magic number for " + key +
                              " mentioned in the provided text is");
    c.question.answer = ids(" " + number + ".");
    return c;
  }
  /// Text of the same kind for calibration: haystacks with their questions answered.
  std::vector<int32_t> text(size_t n_tokens) {
    std::vector<int32_t> out;
    while (out.size() < n_tokens) {
      const Case c = make(300, 0.3);
      for (const auto* part : {&c.prefix, &c.question.question, &c.question.answer})
        out.insert(out.end(), part->begin(), part->end());
    }
    return out;
  }

 private:
  std::vector<int32_t> ids(const std::string& text) const {
    return tokenizer_.encode(text, Tokenizer::Special::AsText, Tokenizer::Bos::Never);
  }
  template <size_t n>
  std::string pick(const char* const (&list)[n]) {
    return list[rng_() % n];
  }
  const Tokenizer& tokenizer_;
  std::mt19937 rng_;
};

class Needle : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = KV2_SOURCE_DIR "/../shared/models/needle-15m";
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "not run: needle-15m is not at ../shared/models";
    backend_ = open_device({});
    model_ = Model::load(path, *backend_, kMaxRows);
    std::string why;
    tokenizer_ = load_tokenizer(model_->file(), &why);
    ASSERT_TRUE(tokenizer_) << why;
    Haystacks own(*tokenizer_, 99);
    const CalibrateOptions options{.n_tokens = 4096, .n_held_out = 512};
    calibration_ = calibrate(*model_, own.text(options.n_tokens + options.n_held_out), options);
  }
  /// How many of these needles greedy decoding finds.
  int found(const char* method, const std::vector<Haystacks::Case>& cases) {
    int n = 0;
    for (const auto& c : cases)
      n += needle_exact(*model_, CacheSpec::parse(method), &calibration_, c.prefix, {c.question})[0];
    return n;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Calibration calibration_;
};

TEST_F(Needle, SingleNeedlesAt4096) {
  Haystacks haystacks(*tokenizer_, 7);
  std::vector<Haystacks::Case> cases;
  for (double depth : {0.1, 0.35, 0.6, 0.85}) cases.push_back(haystacks.make(4096, depth));
  EXPECT_EQ(found("bf16", cases), 4);
  EXPECT_EQ(found("oscar2", cases), 4);
  EXPECT_EQ(found("kv2", cases), 4);
}

TEST_F(Needle, SingleNeedleAt32768) {
  Haystacks haystacks(*tokenizer_, 8);
  const std::vector<Haystacks::Case> cases = {haystacks.make(32768, 0.4)};
  for (const char* method : {"bf16", "oscar2"}) EXPECT_EQ(found(method, cases), 1) << method;
}

}  // namespace
}  // namespace kv2
