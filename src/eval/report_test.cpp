// SPDX-License-Identifier: Apache-2.0
// report_html: every line of every judge is on the page, the page is well-formed, the winners are the
// winners, and what is wrong with a file is said with its line.
#include "eval/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "calibrate/tiny_model.h"
#include "eval/attention_error.h"
#include "eval/divergence.h"
#include "eval/test_markup.h"
#include "eval/token_norms.h"
#include "kv2/error.h"

namespace kv2 {
namespace {

using testing::unbalanced;

std::string kld(const char* method, double bits, double kl, int recent = 256) {
  return nlohmann::json{
             {"judge", "kld"},      {"method", method}, {"history_bits", bits}, {"all_in_bits", bits + 0.6},
             {"kv_bytes", 123456},  {"tokens", 1000},   {"ppl", 10 + kl},       {"kl_mean", kl},
             {"kl_median", kl / 2}, {"kl_p99", 3 * kl}, {"kl_max", 9 * kl},     {"top1", 0.9},
             {"kl_tokens", 900},    {"sink", 64},       {"recent", recent}}
             .dump() +
         "\n";
}

bool has(const std::string& page, const std::string& text) {
  return page.find(text) != std::string::npos;
}

TEST(Report, EveryMethodAndTheWinnerOfEveryBudget) {
  const std::string page = report_html(
      {{"kld.jsonl", kld("bf16", 16, 0) + kld("naive2", 2.5, 1.7) + kld("oscar2:clip-k=0.9", 2.5, 0.05) +
                         "\n" + kld("kv2", 2.25, 0.04) + kld("int4", 4.5, 0.002)},
       {"more.jsonl", kld("kv2", 2.5, 0.03, 128)}},
      "A <title> & more");
  EXPECT_EQ(unbalanced(page), "");
  for (const char* text : {"bf16", "naive2", "oscar2:clip-k=0.9", "int4", "kv2 [64+128]",
                           "A &lt;title&gt; &amp; more", "123,456", "10.00 %"})
    EXPECT_TRUE(has(page, text)) << text;
  EXPECT_FALSE(has(page, "<title> &")) << "the title is escaped";
  // at most 2.25: kv2 alone; 2.5: the other kv2 by 0.04 / 0.03; 4.5: int4 by 0.03 / 0.002
  EXPECT_TRUE(has(page, "<td class=\"n\">2.25</td><td class=\"n\">kv2</td><td class=\"n\">0.04000</td>"));
  EXPECT_TRUE(has(page, "<td class=\"n\">2.5</td><td class=\"n\">kv2 [64+128]</td>"));
  EXPECT_TRUE(has(page, "<td class=\"n\">1.33</td>"));
  EXPECT_TRUE(has(page, "<td class=\"n\">15.00</td>"));
  EXPECT_FALSE(has(page, "<script")) << "no script";
  EXPECT_FALSE(has(page, "http")) << "no network";
  EXPECT_FALSE(has(page, "nan"));
  EXPECT_EQ(page, report_html({{"kld.jsonl", kld("bf16", 16, 0) + kld("naive2", 2.5, 1.7) +
                                                 kld("oscar2:clip-k=0.9", 2.5, 0.05) +
                                                 kld("kv2", 2.25, 0.04) + kld("int4", 4.5, 0.002)},
                               {"x", kld("kv2", 2.5, 0.03, 128)}},
                              "A <title> & more"))
      << "the same lines, the same page";
}

TEST(Report, TextsAndModelsStayApart) {
  auto first = nlohmann::json::parse(kld("kv2", 2.5, 0.04)), second = first;
  first["run"] = {
      {"model", "one"}, {"text_hash", "aaaaaaaaaaaaaaaa"}, {"text_tokens", 10}, {"command", "kv2 <a>"}};
  second["run"] = {{"model", "two"}, {"text_hash", "bbbbbbbbbbbbbbbb"}, {"text_tokens", 20}};
  second["kl_mean"] = 0.9;
  const std::string page = report_html({{"f", first.dump() + "\n" + second.dump()}}, "t");
  EXPECT_TRUE(has(page, "one, text aaaaaaaaaaaa (10 tokens)"));
  EXPECT_TRUE(has(page, "two, text bbbbbbbbbbbb (20 tokens)"));
  EXPECT_TRUE(has(page, "kv2 &lt;a&gt;"));
  EXPECT_EQ(unbalanced(page), "");
}

TEST(Report, WhatTheJudgesPrintIsWhatItReads) {
  testing::TinyModel model(128);
  const auto tokens = testing::random_tokens(520, 11);
  CacheSpec spec = CacheSpec::parse("naive2");
  spec.recent_tokens = 64;
  std::string lines;
  for (const auto& r : measure_divergence(*model, tokens, {CacheSpec::parse("bf16"), spec}, nullptr, {}))
    lines += to_json(r) + "\n";
  for (const auto& r : measure_attention_error(*model, tokens, {spec}, nullptr, {}))
    lines += to_json_lines(r);
  lines += to_json_lines(measure_token_norms(*model, tokens, {{"none", {}}}, {}));
  lines +=
      R"({"judge":"needle","method":"naive2","task":"single","length":1024,"depth":0.5,"questions":4,"exact":0.75})"
      "\n";
  lines +=
      R"({"judge":"needle","method":"naive2","task":"single","length":2048,"depth":0.5,"questions":2,"exact":1,"context":1024,"beyond_context":true})"
      "\n";
  lines +=
      R"({"judge":"ruler","method":"naive2","task":"niah_multikey_3","length":4096,"questions":16,"exact":0.125,"substring":0.5})"
      "\n";
  lines +=
      R"({"judge":"generate","method":"naive2","prompts":5,"tokens":900,"left_mean":17.5,"agree":0.25,"distinct_4":0.75,"longest_loop":3,"collapsed":1})"
      "\n";
  const std::string page = report_html({{"all", lines}}, "t");
  EXPECT_EQ(unbalanced(page), "");
  EXPECT_FALSE(has(page, "nan"));
  for (const char* text :
       {"Attention output", "naive2 [64+64]", "By position", "Keys by layer", "Norms by position",
        "none + token scaling", ">75</text>", ">100</text>", "niah_multikey_3 at 4096<", "12.5 (50.0)",
        "* longer than the context", "17.5", "How it was measured"})
    EXPECT_TRUE(has(page, text)) << text;
}

TEST(Report, SaysFileLineAndReason) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      report_html({{"results.jsonl", text}}, "t");
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  const std::string good = kld("kv2", 2.5, 0.1);
  EXPECT_TRUE(has(message(good + "{\"judge\":\"oracle\"}"), "results.jsonl: line 2: unknown judge 'oracle'"));
  EXPECT_TRUE(has(message(good + "{\"judge\":\"oracle\"}"), "needle"));
  EXPECT_TRUE(has(message("\n\n{nonsense"), "line 3: not a JSON object: \"{nonsense\""));
  EXPECT_TRUE(has(message("GGUF\x03\x1b[2J"), "\"GGUF\\u0003\\u001b[2J\""))
      << "no bytes for the terminal to obey";
  EXPECT_TRUE(has(message("[1]"), "line 1: not a JSON object"));
  EXPECT_TRUE(has(message("{\"judge\":\"kld\",\"method\":\"x\"}"), "needs the number 'history_bits'"));
  EXPECT_TRUE(has(message("{\"judge\":\"ruler\",\"method\":3}"), "needs the text 'method', found 3"));
  EXPECT_TRUE(has(message("{\"judge\":\"needle\",\"method\":\"x\",\"task\":\"y\",\"length\":-5,\"depth\":0,"
                          "\"questions\":1,\"exact\":1}"),
                  "'length'"));
  EXPECT_TRUE(has(message("  \n"), "no results in results.jsonl"));
  auto odd = nlohmann::json::parse(good);
  odd["sink"] = "many";
  EXPECT_TRUE(has(message(odd.dump()), "results.jsonl: line 1"));
  odd = nlohmann::json::parse(good);
  odd["run"] = {{"model", 7}};
  EXPECT_TRUE(has(message(odd.dump()), "results.jsonl: line 1"));
}

}  // namespace
}  // namespace kv2
