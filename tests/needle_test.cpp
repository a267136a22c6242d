// SPDX-License-Identifier: Apache-2.0
// The retrieval judges through the whole stack on needle-15m (head_dim 128), bf16 and 2-bit caches after a
// calibration on text of the model's own kind. The model lies beside the project, not in it; its tests say so
// plainly when it is absent. Under a sanitizer the same code goes through shorter texts, and says so.
#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>

#include "calibrate/calibrate.h"
#include "engine/device.h"
#include "engine/engine.h"
#include "eval/needle.h"
#include "eval/ruler.h"
#include "model/model.h"
#include "sanitized.h"

namespace kv2 {
namespace {

constexpr int kMaxRows = 512;
constexpr int kShorter = test::kSanitized ? 4 : 1;  // what texts are divided by
const char* const kModel = KV2_SOURCE_DIR "/../shared/models/needle-15m";

class Needle : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kModel)) GTEST_SKIP() << "not run: needle-15m is not at ../shared/models";
    if (kShorter > 1) std::cout << "under a sanitizer: texts are " << kShorter << " times shorter\n";
    backend_ = open_device({});
    model_ = Model::load(kModel, *backend_, kMaxRows);
    std::string why;
    tokenizer_ = load_tokenizer(model_->file(), &why);
    ASSERT_TRUE(tokenizer_) << why;
    writer_ = std::make_unique<HaystackWriter>(*tokenizer_, WordList::choose("", kModel),
                                               std::vector<std::string>{});
    const CalibrateOptions options{
        .n_tokens = 8192 / kShorter, .n_held_out = 1024 / kShorter, .window = 2048 / kShorter};
    const std::vector<RetrievalTask> tasks = {RetrievalTask::parse("niah_multikey_2"),
                                              RetrievalTask::parse("niah_single_2")};
    calibration_ = calibrate(*model_, writer_->training_text(tasks, 2048, 5, 99), options);
  }

  std::vector<CacheSpec> specs(const std::vector<std::string>& methods) const {
    std::vector<CacheSpec> out;
    for (const std::string& m : methods) out.push_back(CacheSpec::parse(m));
    return out;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<HaystackWriter> writer_;
  Calibration calibration_;
};

TEST_F(Needle, EveryDepthAt4096) {
  const NeedlePlan plan{.task = RetrievalTask::parse("single"),
                        .lengths = {4096 / kShorter},
                        .n_depths = 4,
                        .samples = 1,
                        .answer_tokens = 24,
                        .seed = 7};
  const auto cells =
      measure_needles(*model_, specs({"bf16", "oscar2", "kv2"}), &calibration_, make_needles(*writer_, plan),
                      {.answer_tokens = 24}, tokenizer_.get(), {});
  ASSERT_EQ(cells.size(), 12u);
  for (const NeedleCell& c : cells) {
    EXPECT_EQ(c.exact, 1) << c.method << " " << c.depth;
    EXPECT_EQ(c.substring, 1) << c.method << " " << c.depth;
  }
}

// The hardest task tells methods apart; the numbers of docs/quality.md need more questions.
TEST_F(Needle, MultiKeyUuidsTellMethodsApart) {
  const std::vector<HaystackSet> sets =
      make_haystacks(*writer_, {.tasks = {RetrievalTask::parse("niah_multikey_3")},
                                .lengths = {4096 / kShorter},
                                .questions = 16 / kShorter,
                                .seed = 5});
  ASSERT_EQ(sets[0].haystacks.size(), 1u);
  EXPECT_GT(sets[0].haystacks[0].n_needles, 35 / kShorter);
  const auto results = measure_ruler(*model_, specs({"bf16", "naive2", "kv2"}), &calibration_, sets,
                                     {.answer_tokens = 48}, tokenizer_.get(), {});
  EXPECT_EQ(results[0].exact, 1);
  EXPECT_EQ(results[0].substring, 1);
  if (!test::kSanitized) {
    EXPECT_LT(results[1].exact, 0.6);  // a short history is easier
  }
  EXPECT_GE(results[2].exact, 0.8);
  EXPECT_GE(results[1].substring, results[1].exact);
}

TEST_F(Needle, OneNeedleAt32768) {
  const NeedlePlan plan{.task = RetrievalTask::parse("single"),
                        .lengths = {32768 / kShorter},
                        .n_depths = 1,
                        .samples = 1,
                        .answer_tokens = 0,
                        .seed = 8};
  for (const NeedleCell& c : measure_needles(*model_, specs({"bf16", "oscar2"}), &calibration_,
                                             make_needles(*writer_, plan), {.answer_tokens = 0}, nullptr, {}))
    EXPECT_EQ(c.exact, 1) << c.method;
}

}  // namespace
}  // namespace kv2
