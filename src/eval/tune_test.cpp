// SPDX-License-Identifier: Apache-2.0
// tune(): what it returns keeps the budget, parses, is what its divergence says, and is no worse than what it
// began with.
#include "eval/tune.h"

#include <gtest/gtest.h>

#include "cache/cache_plan.h"
#include "calibrate/tiny_model.h"
#include "eval/tune_grid.h"
#include "kv2/error.h"

namespace kv2 {
namespace {

using testing::random_tokens;
using testing::TinyModel;

const KvShape kShape{.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16};

TEST(TuneGrid, PointsAreWithinTheGridAndPriced) {
  const TuneBudget budget{.bits = 4, .all_in_tokens = 0, .shape = kShape};
  const auto grid = priced_grid("quarot2", budget);
  ASSERT_FALSE(grid.empty());
  for (size_t i = 0; i < grid.size(); i++) {
    EXPECT_DOUBLE_EQ(grid[i].bits,
                     plan_cache(grid[i].spec, kShape, {.context_tokens = 64}).layout.history_bits());
    EXPECT_EQ(CacheSpec::parse(grid[i].spec.method_text()).method, grid[i].spec.method);
    if (i > 0) {
      EXPECT_LE(grid[i].bits, grid[i - 1].bits);
    }
    for (size_t j = 0; j < i; j++) EXPECT_NE(grid[i].spec, grid[j].spec) << "no point twice";
  }
}

TEST(TuneGrid, NeighboursDifferInOneKnobAndKeepTheBudget) {
  const TuneBudget budget{.bits = 4, .all_in_tokens = 0, .shape = kShape};
  const TunePoint point{.method = "quarot2", .values = {{"clip", "0.92"}}};
  const auto near = neighbours(point, budget);
  bool wider = false, windows = false;
  for (const PricedPoint& p : near) {
    EXPECT_LE(p.bits, 4.0 + 1e-9);
    wider |= p.point.values.count("clip") && p.point.values.at("clip") == "0.96";
    windows |= p.point.sink == 0 && p.point.values == point.values;
    EXPECT_NE(p.point, point);
  }
  EXPECT_TRUE(wider);
  EXPECT_TRUE(windows);
}

TEST(TuneGrid, AllInBitsCountWindows) {
  const TuneBudget budget{.bits = 6, .all_in_tokens = 512, .shape = kShape};
  const CacheSpec few = *budget.spec_of({.method = "quarot2", .values = {}, .sink = 0, .recent = 64});
  const CacheSpec many = *budget.spec_of({.method = "quarot2", .values = {}, .sink = 64, .recent = 256});
  EXPECT_LT(budget.bits_of(few), budget.bits_of(many));
  EXPECT_EQ(budget.spec_of({.method = "quarot2", .values = {{"group", "16"}}}),
            budget.spec_of({.method = "quarot2", .values = {}}))
      << "16 is the group that it has anyway";
  EXPECT_FALSE(budget.spec_of({.method = "quarot2", .values = {{"group", "128"}}}))
      << "128 is no group of 16";
  EXPECT_FALSE(budget.spec_of({.method = "naive2", .values = {{"whiten", "0.5"}}}))
      << "no parameter of naive2";
}

class Tune : public ::testing::Test {
 protected:
  TinyModel model_{64};
  std::vector<int32_t> tokens_ = random_tokens(700, 21);
  std::vector<std::string> said_;
  std::function<void(const std::string&)> say_ = [this](const std::string& s) { said_.push_back(s); };
  TuneOptions options_{.bits = 4, .short_tokens = 450, .long_tokens = 600, .rounds = 2, .n_threads = 2};
};

TEST_F(Tune, KeepsTheBudgetAndGains) {
  const TuneResult r = tune(*model_, tokens_, nullptr, {"naive2", "quarot2"}, options_, say_);
  ASSERT_GE(r.finalists.size(), 2u);
  EXPECT_GT(r.measured, 10);
  EXPECT_GE(said_.size(), 2u);
  double plain = 0;
  for (size_t i = 0; i < r.finalists.size(); i++) {
    const TuneChoice& c = r.finalists[i];
    EXPECT_LE(c.bits, 4.0 + 1e-9);
    EXPECT_DOUBLE_EQ(c.bits, plan_cache(c.spec, kShape, {.context_tokens = 64}).layout.history_bits());
    EXPECT_EQ(c.spec.sink_tokens + c.spec.recent_tokens, 320);
    if (i > 0) {
      EXPECT_GE(c.result.kl_mean, r.finalists[i - 1].result.kl_mean);
    }
    if (c.spec.method_text() == "naive2" && c.spec.sink_tokens == 64) plain = c.result.kl_mean;
  }
  ASSERT_GT(plain, 0) << "the first method as it is stays among the finalists";
  EXPECT_LT(r.best().result.kl_mean, plain);
  std::vector<CacheSpec> specs;
  for (const TuneChoice& c : r.finalists) specs.push_back(c.spec);
  const auto again =
      measure_divergence(*model_, tokens_, specs, nullptr, {.max_tokens = 600, .n_threads = 1});
  for (size_t i = 0; i < specs.size(); i++)
    EXPECT_EQ(again[i].kl_mean, r.finalists[i].result.kl_mean) << "the number is that of eval kld";
}

TEST_F(Tune, AllInBudget) {
  options_.bits = 8;
  options_.all_in_tokens = 768;
  options_.rounds = 1;
  const TuneResult r = tune(*model_, tokens_, nullptr, {"quarot2"}, options_, say_);
  for (const TuneChoice& c : r.finalists) {
    EXPECT_LE(c.bits, 8.0 + 1e-9);
    EXPECT_NEAR(c.bits,
                plan_cache(c.spec, kShape, {.context_tokens = 768, .chunk_tokens = 64}).all_in_bits(768),
                1e-9);
  }
}

TEST_F(Tune, OptionsOfRunReadBack) {
  CacheSpec spec = CacheSpec::parse("oscar2:clip-k=0.9,group=32");
  spec.sink_tokens = 128;
  spec.recent_tokens = 0;
  const std::string text = run_options(spec);
  const size_t begin = text.find('\'') + 1, end = text.find('\'', begin);
  EXPECT_EQ(CacheSpec::parse(text.substr(begin, end - begin)).method, spec.method);
  EXPECT_EQ(text.substr(end), "' --sink 128 --recent 0");
}

TEST_F(Tune, SaysWhatIsWrong) {
  const auto message = [&](const std::vector<std::string>& methods,
                           const TuneOptions& options) -> std::string {
    try {
      tune(*model_, tokens_, nullptr, methods, options, say_);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::BadArgument);
      return e.what();
    }
    return "no error";
  };
  TuneOptions small = options_;
  small.bits = 0.1;
  EXPECT_NE(message({"quarot2"}, small).find("the least"), std::string::npos);
  EXPECT_NE(message({"oscar2"}, options_).find("kv2 calibrate"), std::string::npos);
  EXPECT_NE(said_.back().find("oscar2 is left out"), std::string::npos);
  EXPECT_NE(message({"bf16"}, options_).find("no method"), std::string::npos);
  EXPECT_NE(message({"no-such"}, options_).find("no-such"), std::string::npos);
  small = options_;
  small.all_in_tokens = 100000;
  EXPECT_NE(message({"quarot2"}, small).find("context is 768"), std::string::npos);
  small = options_;
  small.short_tokens = small.long_tokens = 100;
  EXPECT_NE(message({"quarot2"}, small).find("385"), std::string::npos) << "the text is too short";
}

}  // namespace
}  // namespace kv2
