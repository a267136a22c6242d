// SPDX-License-Identifier: Apache-2.0
// RetrievalRunner against greedy decoding token by token, and measure_ruler and measure_needles over it.
#include "eval/retrieval.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "calibrate/tiny_model.h"
#include "eval/needle.h"
#include "eval/ruler.h"
#include "eval/test_letters.h"
#include "kv2/error.h"

namespace kv2 {
namespace {

using testing::kTinyVocab;
using testing::letters;
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

std::vector<AnswerScore> ask(Model& model, const CacheSpec& spec, const Haystack& h,
                             const RetrievalOptions& options, const Tokenizer* tokenizer) {
  Progress progress("test", 1);
  return RetrievalRunner(model, spec, nullptr, 400, options, tokenizer).ask(h, progress);
}

/// A haystack with questions of several lengths; each right answer is followed by three wrong ones.
Haystack haystack_with_answers(Model& model, const CacheSpec& spec) {
  Haystack h{.ids = random_tokens(211, 1), .questions = {}, .n_needles = 0};
  for (const int length : {1, 5, 40}) {
    RetrievalQuestion q{
        .question = random_tokens(length, 10 + length), .answer = {}, .values = {}, .depth = 0};
    std::vector<int32_t> text(h.ids);
    text.insert(text.end(), q.question.begin(), q.question.end());
    q.answer = greedy(model, spec, text, 35);
    h.questions.push_back(q);
    for (const size_t wrong : {size_t{0}, size_t{20}, q.answer.size() - 1}) {
      RetrievalQuestion bad = q;
      bad.answer[wrong] = (bad.answer[wrong] + 1) % kTinyVocab;
      h.questions.push_back(bad);
    }
  }
  return h;
}

TEST(Retrieval, ExactAgreesWithGreedyDecoding) {
  TinyModel model(30);  // haystack, question and answer all cross chunks and forwards
  for (const auto& [method, prefill] : {std::pair{"bf16", PrefillPolicy::Windowed},
                                        {"quarot2", PrefillPolicy::Windowed},
                                        {"naive2", PrefillPolicy::Windowed},
                                        {"naive2", PrefillPolicy::Exact}}) {
    const CacheSpec spec = spec_of(method, prefill);
    const Haystack h = haystack_with_answers(*model, spec);
    for (const int together : {1, 5, 12}) {
      std::vector<uint8_t> exact;
      for (const AnswerScore& s :
           ask(*model, spec, h, {.chunk_tokens = 17, .answer_tokens = 0, .most_questions = together},
               nullptr)) {
        exact.push_back(s.exact);
        EXPECT_EQ(s.substring, -1);
      }
      EXPECT_EQ(exact, (std::vector<uint8_t>{1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0}))
          << method << " " << together;
    }
  }
}

TEST(Retrieval, SubstringIsOfFreelyGeneratedText) {
  TinyModel model(64);
  const CacheSpec spec = spec_of("naive2", PrefillPolicy::Windowed);
  const Tokenizer tokenizer = letters();
  Haystack h = haystack_with_answers(*model, spec);
  for (RetrievalQuestion& q : h.questions) {
    std::vector<int32_t> text(h.ids);
    text.insert(text.end(), q.question.begin(), q.question.end());
    const std::vector<int32_t> said = greedy(*model, spec, text, 6);
    std::string half = tokenizer.decode(said, Tokenizer::Special::Parse);
    for (char& c : half) c = static_cast<char>(std::toupper(c));  // case is ignored
    q.values = {half, "no such text"};
  }
  const auto scores =
      ask(*model, spec, h, {.chunk_tokens = 64, .answer_tokens = 6, .most_questions = 12}, &tokenizer);
  for (size_t i = 0; i < scores.size(); i++) {
    // What is behind an end of text is not generated.
    const char end = testing::kLetters[testing::kTinyEos];
    const bool ended =
        h.questions[i].values[0].find(static_cast<char>(std::toupper(end))) != std::string::npos;
    if (!ended) {
      EXPECT_EQ(scores[i].substring, scores[i].exact ? 1 : 0.5) << i;
    }
  }
}

TEST(Retrieval, SubstringScoreIgnoresCaseAndCountsShares) {
  EXPECT_EQ(substring_score(" It is 7-Ab, surely", {"7-aB"}), 1);
  EXPECT_EQ(substring_score("7-a", {"7-ab", "7", "-A", "x"}), 0.5);
  EXPECT_EQ(substring_score("", {"x"}), 0);
  EXPECT_EQ(substring_score("anything", {}), -1);
}

TEST(Retrieval, RefusesNonsense) {
  TinyModel model(64);
  const CacheSpec spec = spec_of("bf16", PrefillPolicy::Windowed);
  const RetrievalOptions options{.answer_tokens = 0};
  const auto with = [](std::vector<int32_t> question, std::vector<int32_t> answer) {
    return Haystack{.ids = random_tokens(20, 1),
                    .questions = {{std::move(question), std::move(answer), {}, 0}},
                    .n_needles = 0};
  };
  EXPECT_THROW(ask(*model, spec, with({}, {1}), options, nullptr), Error);
  EXPECT_THROW(ask(*model, spec, with({1}, {}), options, nullptr), Error);
  EXPECT_THROW(ask(*model, spec, with({1}, {kTinyVocab}), options, nullptr), Error);
  EXPECT_THROW(ask(*model, spec, with(random_tokens(380, 2), {1}), options, nullptr), Error);
  EXPECT_THROW(RetrievalRunner(*model, spec, nullptr, testing::kTinyContext + 1, options, nullptr), Error);
  Haystack empty = with({1}, {1});
  empty.ids.clear();
  EXPECT_THROW(ask(*model, spec, empty, options, nullptr), Error);
}

TEST(Ruler, SumsScoresOfEveryMethodAndSet) {
  TinyModel model(64);
  const std::vector<CacheSpec> specs = {spec_of("bf16", PrefillPolicy::Windowed),
                                        spec_of("naive2", PrefillPolicy::Windowed)};
  std::vector<HaystackSet> sets;
  for (const CacheSpec& spec : specs)  // each method knows the answers of its own set
    sets.push_back({.task = spec.method.name,
                    .length = 300,
                    .seed = 0,
                    .haystacks = {haystack_with_answers(*model, spec)}});
  sets[0].haystacks.push_back(sets[0].haystacks[0]);
  int reported = 0;
  const auto results = measure_ruler(*model, specs, nullptr, sets, {.chunk_tokens = 50, .answer_tokens = 0},
                                     nullptr, [&](const RulerResult&) { reported++; });
  ASSERT_EQ(results.size(), 4u);
  EXPECT_EQ(reported, 4);
  EXPECT_EQ(results[0].exact, 0.25);
  EXPECT_EQ(results[0].questions, 24);
  EXPECT_EQ(results[0].haystacks, 2);
  EXPECT_EQ(results[3].exact, 0.25);
  EXPECT_EQ(results[3].questions, 12);
  EXPECT_LT(results[1].exact, 0.25) << "naive2 says what bf16 says, on random weights with 2-bit keys";
  EXPECT_EQ(results[1].method, "naive2");
  EXPECT_EQ(results[1].task, "bf16");
  EXPECT_EQ(to_json(results[0]).find("substring"), std::string::npos);
  sets[0].haystacks[0].ids = random_tokens(testing::kTinyContext, 1);
  EXPECT_THROW(measure_ruler(*model, specs, nullptr, sets, {}, nullptr, {}), Error);
  sets[1].length = 1;  // a label
  EXPECT_LT(
      measure_ruler(*model, {specs[1]}, nullptr, {sets[1]}, {.answer_tokens = 0}, nullptr, {})[0].all_in_bits,
      16)
      << "of what the texts take, not of the label";
}

// The context is a number that nothing in the cache or in RoPE depends on: past it a model says what the same
// weights say within a longer one.
TEST(Retrieval, PastTheContextIsWhatALongerContextSays) {
  TinyModel trained(64, 600), shorter(64, 128);
  const Tokenizer tokenizer = letters();
  const std::vector<CacheSpec> specs = {
      spec_of("bf16", PrefillPolicy::Windowed), spec_of("naive2", PrefillPolicy::Windowed),
      spec_of("kivi2:group-v=16", PrefillPolicy::Windowed), spec_of("naive2", PrefillPolicy::Exact)};
  HaystackSet set{.task = "mine", .length = 300, .seed = 0, .haystacks = {}};
  for (const CacheSpec& spec : specs) set.haystacks.push_back(haystack_with_answers(*trained, spec));
  for (Haystack& h : set.haystacks)
    for (RetrievalQuestion& q : h.questions) q.values = {"e"};
  RetrievalOptions options{.chunk_tokens = 50, .answer_tokens = 9};
  const auto within = measure_ruler(*trained, specs, nullptr, {set}, options, &tokenizer, {});
  EXPECT_THROW(measure_ruler(*shorter, specs, nullptr, {set}, options, &tokenizer, {}), Error);
  options.past_context = PastContext::Run;
  const auto past = measure_ruler(*shorter, specs, nullptr, {set}, options, &tokenizer, {});
  ASSERT_EQ(past.size(), specs.size());
  for (size_t i = 0; i < past.size(); i++) {
    EXPECT_GE(within[i].exact, 1.0 / 16) << "own answers are right";
    auto line = nlohmann::json::parse(to_json(past[i]));
    EXPECT_EQ(line["context"], 128);
    EXPECT_EQ(line["beyond_context"], true);
    line.erase("context");
    line.erase("beyond_context");
    EXPECT_EQ(line, nlohmann::json::parse(to_json(within[i])));
  }
  EXPECT_NE(to_table(past).find("300*"), std::string::npos);
  EXPECT_NE(to_table(past).find("positions from 128 on"), std::string::npos);
  EXPECT_EQ(to_table(within).find('*'), std::string::npos);
  set.length = 99999;  // a label of a file
  EXPECT_FALSE(measure_ruler(*trained, {specs[0]}, nullptr, {set}, {.answer_tokens = 0}, nullptr, {})[0]
                   .beyond_context);
}

TEST(Needle, FillsEveryCellOfTheMap) {
  TinyModel model(64);
  const Tokenizer tokenizer = letters();
  const HaystackWriter writer(tokenizer, WordList::built_in(), {});
  const std::vector<CacheSpec> specs = {spec_of("bf16", PrefillPolicy::Windowed),
                                        spec_of("naive2", PrefillPolicy::Windowed)};
  NeedlePlan plan{.task = RetrievalTask::parse("single"),
                  .lengths = {600, 700},
                  .n_depths = 3,
                  .samples = 1,
                  .answer_tokens = 4,
                  .seed = 3};
  int rows = 0;
  const auto cells =
      measure_needles(*model, specs, nullptr, make_needles(writer, plan), {.answer_tokens = 4}, &tokenizer,
                      [&](std::span<const NeedleCell> row) { rows += row.size() == 3; });
  ASSERT_EQ(cells.size(), 12u);
  EXPECT_EQ(rows, 4);
  EXPECT_EQ(cells[4].depth, 0.5);
  EXPECT_EQ(cells[4].method, "naive2");
  EXPECT_EQ(cells[11].length, 700);
  for (const NeedleCell& c : cells) {
    EXPECT_EQ(c.questions, 1);
    EXPECT_TRUE(c.exact == 0 || c.exact == 1);
    EXPECT_GE(c.substring, 0);
  }
  const auto line = nlohmann::json::parse(to_json(cells[4]));
  for (const char* key : {"judge", "method", "history_bits", "task", "length", "questions", "exact",
                          "substring", "sink", "recent", "prefill", "seed", "depth"})
    EXPECT_TRUE(line.contains(key)) << key;
  plan.task = RetrievalTask::parse("multi-query");
  EXPECT_THROW(make_needles(writer, plan), Error);
  plan.task = RetrievalTask::parse("single");
  plan.lengths = {testing::kTinyContext + 1};
  EXPECT_THROW(measure_needles(*model, specs, nullptr, make_needles(writer, plan), {}, &tokenizer, {}),
               Error);
  TinyModel shorter(64, 128);
  plan.lengths = {600, 700};
  const auto past = measure_needles(*shorter, specs, nullptr, make_needles(writer, plan),
                                    {.answer_tokens = 4, .past_context = PastContext::Run}, &tokenizer, {});
  ASSERT_EQ(past.size(), cells.size());
  for (size_t i = 0; i < past.size(); i++) {
    EXPECT_EQ(past[i].exact, cells[i].exact) << i;
    EXPECT_EQ(past[i].substring, cells[i].substring) << i;
    EXPECT_TRUE(past[i].beyond_context && !cells[i].beyond_context);
  }
  EXPECT_NE(to_table(past).find("600*"), std::string::npos);
}

// A column and a row per length: what is named twice is read once.
TEST(Retrieval, LengthsAndTasksNamedTwiceAreOne) {
  const Tokenizer tokenizer = letters();
  const HaystackWriter writer(tokenizer, WordList::built_in(), {});
  const RetrievalTask task = RetrievalTask::parse("single");
  std::vector<int64_t> lengths;
  for (const NeedleSet& set :
       make_needles(writer, {.task = task, .lengths = {600, 700, 600}, .n_depths = 2, .answer_tokens = 4}))
    lengths.push_back(set.length);
  EXPECT_EQ(lengths, (std::vector<int64_t>{600, 700}));
  EXPECT_EQ(
      make_haystacks(writer,
                     {.tasks = {task, task}, .lengths = {600, 600, 700}, .questions = 1, .answer_tokens = 4})
          .size(),
      2u);
}

// The name says how many keys there are, and a name that says another number is refused.
TEST(Needle, AMapHasAKeyForEachDepth) {
  const Tokenizer tokenizer = letters();
  const HaystackWriter writer(tokenizer, WordList::built_in(), {});
  for (const char* text : {"multi-key", "multi-key:n-keys=3"}) {
    const auto sets = make_needles(
        writer, {.task = depth_task(text, 3), .lengths = {1200}, .n_depths = 3, .answer_tokens = 4});
    EXPECT_EQ(sets[0].task, "multi-key:n-keys=3");
    EXPECT_EQ(sets[0].haystacks[0].n_needles, 3);
  }
  EXPECT_EQ(depth_task("single", 3).n_keys, 1);
  for (const char* text : {"multi-key:n-keys=1", "multi-key:n-keys=4", "multi-query", "single:n-keys=2"})
    EXPECT_THROW(depth_task(text, 3), Error) << text;
}

// A judge of texts that end before the history begins would judge bf16.
TEST(Retrieval, TextsThatReadNoCodeAreRefused) {
  CacheSpec spec = spec_of("naive2", PrefillPolicy::Windowed);  // history from 128 on
  const auto set = [](int n, int n_answer) {
    return HaystackSet{.task = "mine",
                       .length = 7,
                       .seed = 0,
                       .haystacks = {{.ids = random_tokens(n, 1),
                                      .questions = {{random_tokens(5, 2), random_tokens(n_answer, 3), {}, 0}},
                                      .n_needles = 0}}};
  };
  const auto refusal = [&](const HaystackSet& s) -> std::string {
    try {
      require_history(s, {CacheSpec::parse("bf16"), spec});
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::BadArgument);
      return e.what();
    }
    return "";
  };
  const std::string short_of = refusal(set(115, 9));
  for (const char* part : {"mine", "naive2", "position 128", "129 tokens", "130 or more", "file", "--sink"})
    EXPECT_NE(short_of.find(part), std::string::npos) << part << " in: " << short_of;
  EXPECT_EQ(refusal(set(116, 9)), "") << "the last answer token but one is at 128";
  spec.prefill = PrefillPolicy::Exact;
  EXPECT_EQ(refusal(set(116, 9)), "");
  EXPECT_NE(refusal(set(300, 1)).find("--prefill windowed"), std::string::npos);
  EXPECT_EQ(refusal(set(300, 2)), "");
  HaystackSet made = set(50, 9);
  made.made = true;  // with room for an answer of 36 tokens more
  made.length = 100;
  spec.prefill = PrefillPolicy::Windowed;
  EXPECT_NE(refusal(made).find("166 or more tokens are needed (--length)"), std::string::npos)
      << refusal(made);
  TinyModel model(64);
  EXPECT_THROW(measure_ruler(*model, {spec}, nullptr, {made}, {.answer_tokens = 0}, nullptr, {}), Error);
  NeedleSet map{made, {0.5}, {{0}}};
  EXPECT_THROW(measure_needles(*model, {spec}, nullptr, {map}, {.answer_tokens = 0}, nullptr, {}), Error);
}

// A made length counts with the room of a free answer, also where question and answer end within the context.
TEST(Retrieval, AMadeLengthPastTheContextIsMarked) {
  TinyModel model(64, 590);
  const Tokenizer tokenizer = letters();
  const HaystackWriter writer(tokenizer, WordList::built_in(), {});
  const std::vector<CacheSpec> specs = {spec_of("naive2", PrefillPolicy::Windowed)};
  const RetrievalTask task = RetrievalTask::parse("single");
  const auto needles = make_needles(
      writer, {.task = task, .lengths = {600}, .n_depths = 1, .samples = 1, .answer_tokens = 90, .seed = 3});
  const auto haystacks = make_haystacks(
      writer, {.tasks = {task}, .lengths = {600}, .questions = 1, .answer_tokens = 90, .seed = 3});
  ASSERT_LE(needles[0].context(0), 590);
  ASSERT_LE(haystacks[0].context(0), 590);
  RetrievalOptions options{.answer_tokens = 90};
  EXPECT_THROW(measure_needles(*model, specs, nullptr, needles, options, &tokenizer, {}), Error);
  EXPECT_THROW(measure_ruler(*model, specs, nullptr, haystacks, options, &tokenizer, {}), Error);
  options.past_context = PastContext::Run;
  EXPECT_TRUE(measure_needles(*model, specs, nullptr, needles, options, &tokenizer, {})[0].beyond_context);
  EXPECT_TRUE(measure_ruler(*model, specs, nullptr, haystacks, options, &tokenizer, {})[0].beyond_context);
}

}  // namespace
}  // namespace kv2
