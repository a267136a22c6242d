// SPDX-License-Identifier: Apache-2.0
// Every method's schedule, window by window, and that runs under it are runs with these windows by hand.
#include "eval/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "calibrate/tiny_model.h"
#include "eval/divergence.h"
#include "kv2/error.h"

namespace kv2 {
namespace {

using testing::random_tokens;
using testing::TinyModel;
using Windows = std::tuple<PrefillPolicy, int, int>;

Windows windows_of(const CacheSpec& s) {
  return {s.prefill, s.sink_tokens, s.recent_tokens};
}

std::string refusal(const std::string& method, const std::string& schedule) {
  try {
    under_schedule({CacheSpec::parse(method)}, schedule);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::BadArgument);
    return e.what();
  }
  ADD_FAILURE() << method << " was taken under " << schedule;
  return "";
}

TEST(Schedule, EveryMethodsOwn) {
  constexpr PrefillPolicy kExact = PrefillPolicy::Exact, kWindowed = PrefillPolicy::Windowed;
  const std::map<std::string, Windows> expected = {
      {"bf16", {kWindowed, 64, 256}},    {"kv2", {kWindowed, 64, 256}}, {"quarot2", {kWindowed, 0, 0}},
      {"rotatekv2", {kWindowed, 64, 0}}, {"oscar2", {kExact, 64, 256}}, {"oscar2-lloyd", {kExact, 64, 256}},
      {"kivi2", {kExact, 0, 128}},       {"ott2", {kExact, 0, 128}},    {"omni2", {kExact, 0, 128}},
      {"kitty2", {kExact, 64, 128}},     {"tq2", {kExact, 0, 0}},       {"tq3", {kExact, 0, 0}},
      {"tq4", {kExact, 0, 0}},           {"gtq2", {kExact, 0, 0}},      {"int4", {kExact, 0, 0}},
  };
  for (const MethodInfo& m : methods()) {
    const auto at = expected.find(m.name);
    if (at == expected.end()) {
      EXPECT_NE(refusal(m.name, "paper").find(m.name + " has no schedule"), std::string::npos);
      continue;
    }
    CacheSpec spec = CacheSpec::parse(m.name);
    const CacheSpec got = under_schedule({spec}, "paper")[0];
    EXPECT_EQ(windows_of(got), at->second) << m.name;
    got.validate(64);
    std::tie(spec.prefill, spec.sink_tokens, spec.recent_tokens) = at->second;
    EXPECT_EQ(got, spec) << m.name << ": nothing else changes";
  }
}

// The mean of what a window of whole pages keeps is no less than the paper's: 64·W + 31.5 recent tokens.
TEST(Schedule, KeepsNoLessThanThePaper) {
  const std::map<std::string, double> of_paper = {{"oscar2", 259.5}, {"kivi2", 128},  {"omni2", 127.5},
                                                  {"ott2", 128},     {"kitty2", 128}, {"quarot2", 0}};
  for (const auto& [method, mean] : of_paper) {
    const Schedule* s = schedule_of(method);
    ASSERT_TRUE(s) << method;
    EXPECT_GE(s->recent_tokens + 31.5, mean) << method;
    EXPECT_TRUE(s->recent_tokens == 0 || s->recent_tokens - 64 + 31.5 < mean)
        << method << ": a page too many";
  }
}

TEST(Schedule, OfAnotherMethodIsForAll) {
  const std::vector<CacheSpec> specs = {CacheSpec::parse("bf16"), CacheSpec::parse("kv2"),
                                        CacheSpec::parse("naive2")};
  const auto got = under_schedule(specs, "kivi2");
  EXPECT_EQ(got[0], specs[0]);
  for (const int i : {1, 2}) EXPECT_EQ(windows_of(got[i]), (Windows{PrefillPolicy::Exact, 0, 128}));
  EXPECT_NE(refusal("kivi2", "kivi").find("'kivi' is unknown; there are paper, quarot2, oscar2"),
            std::string::npos);
  EXPECT_NE(refusal("int8", "paper").find("by name (quarot2, oscar2"), std::string::npos);
}

TEST(Schedule, NumbersAreThoseOfTheWindowsByHand) {
  TinyModel model(64);
  const std::vector<int32_t> tokens = random_tokens(700, 3);  // prompts are 350 tokens: past every window
  std::vector<CacheSpec> specs;
  for (const char* m : {"kivi2:group-v=16", "omni2:group-v=16", "quarot2", "rotatekv2", "tq2"})
    specs.push_back(CacheSpec::parse(m));
  const auto together = measure_divergence(*model, tokens, under_schedule(specs, "paper"), nullptr, {});
  std::vector<CacheSpec> by_hand = specs;
  by_hand[0].prefill = by_hand[1].prefill = by_hand[4].prefill = PrefillPolicy::Exact;
  for (CacheSpec& s : by_hand) s.sink_tokens = s.recent_tokens = 0;
  by_hand[0].recent_tokens = by_hand[1].recent_tokens = 128;
  by_hand[3].sink_tokens = 64;
  const auto same = measure_divergence(*model, tokens, by_hand, nullptr, {});
  const auto plain = measure_divergence(*model, tokens, specs, nullptr, {});
  for (size_t i = 0; i < specs.size(); i++) {
    EXPECT_EQ(to_json(together[i]), to_json(same[i]));
    EXPECT_NE(together[i].kl_mean, plain[i].kl_mean);
    EXPECT_EQ(together[i].kl_tokens, 350) << "behind the prompt";
    if (by_hand[i].prefill != PrefillPolicy::Exact) continue;
    const auto alone = measure_divergence(*model, tokens, {by_hand[i]}, nullptr, {});
    EXPECT_EQ(together[i].kl_mean, alone[0].kl_mean) << "the methods beside it change nothing";
  }
}

}  // namespace
}  // namespace kv2
