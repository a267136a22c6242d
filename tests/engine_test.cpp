// SPDX-License-Identifier: Apache-2.0
// Engine: an answer does not depend on what runs beside it, how prompts are cut, or which prefix was found in
// the cache; every end of a request frees its pages.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/device.h"
#include "support.h"

namespace kv2::test {
namespace {

constexpr int64_t kContext = 700;

Model& model() {
  static const auto backend = open_device({.device = "cpu", .n_threads = 2});
  static const auto m = Model::load(write_random_model({.n_layers = 2, .seed = 21}), *backend, 128);
  return *m;
}

EngineOptions options(const char* method, int n_sequences, int chunk) {
  EngineOptions o{.cache = CacheSpec::parse(method),
                  .context = kContext,
                  .n_sequences = n_sequences,
                  .chunk_tokens = chunk};
  o.cache.recent_tokens = 64;
  return o;
}

std::vector<GenerateRequest> requests() {
  std::vector<GenerateRequest> out;
  const int64_t lengths[] = {1, 300, 64, 127, 420, 33};
  for (int i = 0; i < 6; i++) {
    GenerateRequest r;
    r.prompt = random_tokens(lengths[i], model().config().vocab, 30 + i);
    r.max_tokens = 20 + 7 * i;
    r.sampling = {.temperature = i % 2 == 0 ? 0.0f : 0.8f, .top_p = 0.95f, .seed = static_cast<uint64_t>(i)};
    out.push_back(r);
  }
  out.push_back(out[4]);  // the same prompt again, and one that shares most of it: prefix hits
  out.push_back(out[4]);
  out.back().prompt.resize(410);
  out.back().prompt.push_back(3);
  return out;
}

struct Answer {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::None;
  bool operator==(const Answer&) const = default;
};

void drain(Engine& engine, std::map<RequestId, Answer>& answers) {
  for (const GenerateEvent& e : engine.step()) {
    Answer& a = answers[e.request];
    EXPECT_EQ(a.finish, FinishReason::None) << "nothing follows the end";
    if (e.token >= 0) a.tokens.push_back(e.token);
    a.finish = e.finish;
  }
}

std::vector<Answer> run_alone(const EngineOptions& o) {
  std::vector<Answer> out;
  for (const GenerateRequest& r : requests()) {
    Engine engine(model(), o, nullptr);
    std::map<RequestId, Answer> answers;
    const RequestId id = engine.submit(r);
    while (!engine.idle()) drain(engine, answers);
    out.push_back(answers[id]);
  }
  return out;
}

/// A few at the start, one more every third step.
std::vector<Answer> run_together(const EngineOptions& o) {
  Engine engine(model(), o, nullptr);
  const auto all = requests();
  std::map<RequestId, Answer> answers;
  std::vector<RequestId> ids;
  for (int step = 0; ids.size() < all.size() || !engine.idle(); step++) {
    if (ids.size() < all.size() && (ids.size() < 3 || step % 3 == 0))
      ids.push_back(engine.submit(all[ids.size()]));
    drain(engine, answers);
  }
  EXPECT_EQ(engine.cache().used_bytes(), 0u);
  std::vector<Answer> out;
  for (RequestId id : ids) out.push_back(answers[id]);
  return out;
}

TEST(Engine, AnswersDoNotDependOnCompanyOrChunks) {
  for (const char* method : {"bf16", "quarot2"}) {
    const auto expected = run_alone(options(method, 1, 128));
    for (size_t i = 0; i < expected.size(); i++) {
      EXPECT_EQ(expected[i].finish, FinishReason::Length) << i;
      EXPECT_EQ(static_cast<int64_t>(expected[i].tokens.size()), requests()[i].max_tokens) << i;
    }
    for (const auto& [n, chunk] : {std::pair{1, 50}, {3, 128}, {4, 13}, {8, 100}}) {
      SCOPED_TRACE(std::string(method) + ", " + std::to_string(n) + " at once, chunks of " +
                   std::to_string(chunk));
      EXPECT_EQ(run_together(options(method, n, chunk)), expected);
    }
  }
}

// A chat: every prompt is the one before with its answer and something new. All whole pages of what was said
// are found, and the answers are those of an engine that reads everything.
TEST(Engine, ChatsReadOnlyWhatIsNew) {
  for (const char* method : {"bf16", "quarot2"}) {
    const EngineOptions o = options(method, 1, 100);
    Engine chat(model(), o, nullptr);
    GenerateRequest r;
    r.max_tokens = 30;
    int64_t said = 0;
    for (int turn = 0; turn < 3; turn++) {
      const auto question = random_tokens(turn == 0 ? 290 : 37, model().config().vocab, 70 + turn);
      r.prompt.insert(r.prompt.end(), question.begin(), question.end());
      const GenerateResult answer = chat.generate(r, {});
      Engine fresh(model(), o, nullptr);
      EXPECT_EQ(answer.tokens, fresh.generate(r, {}).tokens) << method << ", turn " << turn;
      EXPECT_EQ(answer.reused_tokens, said / kPageTokens * kPageTokens) << method << ", turn " << turn;
      r.prompt.insert(r.prompt.end(), answer.tokens.begin(), answer.tokens.end());
      said = static_cast<int64_t>(r.prompt.size()) - 1;  // the last token of an answer was never read
    }
  }
}

TEST(Engine, ExactAnswersDoNotDependOnCompanyOrChunksEither) {
  EngineOptions o = options("naive2", 1, 128);
  o.cache.prefill = PrefillPolicy::Exact;
  const auto expected = run_alone(o);
  o.n_sequences = 3;
  o.chunk_tokens = 45;
  EXPECT_EQ(run_together(o), expected);
  EXPECT_NE(run_alone(options("naive2", 1, 128)), expected) << "the policy matters";
}

TEST(Engine, CancellationFreesPagesAtOnce) {
  Engine engine(model(), options("quarot2", 2, 32), nullptr);
  const auto all = requests();
  const RequestId prompt = engine.submit(all[4]), decoding = engine.submit(all[5]),
                  waiting = engine.submit(all[1]);
  std::map<RequestId, Answer> answers;
  for (int i = 0; i < 6; i++) drain(engine, answers);
  const size_t both = engine.cache().used_bytes();
  engine.cancel(prompt);  // in the middle of its prompt
  EXPECT_LT(engine.cache().used_bytes(), both);
  engine.cancel(prompt);
  while (answers[decoding].tokens.size() < 4) drain(engine, answers);
  engine.cancel(decoding);
  engine.cancel(waiting);
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(engine.cache().used_bytes(), 0u);
  EXPECT_TRUE(engine.step().empty());

  const RequestId again = engine.submit(all[5]);  // and the place is free
  while (!engine.idle()) drain(engine, answers);
  EXPECT_EQ(answers[again], run_alone(options("quarot2", 2, 32))[5]);
}

TEST(Engine, EndsAtTheContextAtAStopTokenAndAtLength) {
  Engine engine(model(), options("naive2", 1, 128), nullptr);
  GenerateRequest r{.prompt = random_tokens(kContext - 5, model().config().vocab, 3), .max_tokens = 100};
  GenerateResult result = engine.generate(r, {});
  EXPECT_EQ(result.finish, FinishReason::Context);
  EXPECT_EQ(result.tokens.size(), 5u);
  EXPECT_EQ(result.prompt_tokens, kContext - 5);
  EXPECT_TRUE(result.text.empty()) << "no tokenizer";

  r.prompt.resize(100);
  r.max_tokens = 12;
  result = engine.generate(r, {});
  EXPECT_EQ(result.finish, FinishReason::Length);
  ASSERT_EQ(result.tokens.size(), 12u);
  const auto plain = result.tokens;
  const size_t first = std::find(plain.begin(), plain.end(), plain[6]) - plain.begin();
  r.stop_tokens = {plain[6]};
  result = engine.generate(r, {});
  EXPECT_EQ(result.finish, FinishReason::EndOfText);
  EXPECT_EQ(result.tokens, std::vector<int32_t>(plain.begin(), plain.begin() + first + 1));
  r.ignore_eos = true;
  EXPECT_EQ(engine.generate(r, {}).tokens, plain);
}

TEST(Engine, GenerateKeepsTheEventsOfOthers) {
  Engine engine(model(), options("bf16", 2, 64), nullptr);
  const auto all = requests();
  std::map<RequestId, Answer> answers;
  const RequestId other = engine.submit(all[2]);
  const GenerateResult mine = engine.generate(all[5], {});
  while (!engine.idle()) drain(engine, answers);
  const auto expected = run_alone(options("bf16", 2, 64));
  EXPECT_EQ(answers[other], expected[2]);
  EXPECT_EQ(mine.tokens, expected[5].tokens);
}

void expect_bad_argument(const std::function<void()>& action, std::initializer_list<const char*> parts) {
  try {
    action();
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::BadArgument) << e.what();
    for (const char* part : parts) EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(Engine, RefusesImpossibleRequests) {
  Engine engine(model(), options("bf16", 1, 64), nullptr);
  const int vocab = model().config().vocab;
  expect_bad_argument([&] { engine.submit({.prompt = random_tokens(kContext, vocab, 1)}); },
                      {"700", "prompt"});
  expect_bad_argument([&] { engine.submit({.prompt = {1, vocab}}); }, {"token 97", "97 tokens"});
  expect_bad_argument([&] { engine.submit({.prompt = {-1}}); }, {"token -1"});
  expect_bad_argument([&] { engine.submit({.prompt = {1}, .max_tokens = 0}); }, {"max_tokens"});
  expect_bad_argument([&] { engine.submit({.prompt = {1}, .sampling = {.top_p = 2}}); }, {"top-p"});
  expect_bad_argument([&] { Engine(model(), {.context = 5000}, nullptr); }, {"5000", "4096"});
  expect_bad_argument([&] { Engine(model(), {.context = 64, .n_sequences = 129}, nullptr); }, {"129", "128"});
  expect_bad_argument([&] { Engine(model(), {.context = 64, .chunk_tokens = 0}, nullptr); }, {"chunks of 0"});
  expect_bad_argument([&] { Engine(model(), options("oscar2", 1, 64), nullptr); }, {"kv2 calibrate"});
  EXPECT_TRUE(engine.idle()) << "nothing of that was queued";
}

TEST(Engine, OpenLoadsAModelWithoutATokenizerForIds) {
  const auto engine =
      Engine::open({.model = fixture("qwen3"), .cache = CacheSpec::parse("quarot2"), .chunk_tokens = 16});
  const GenerateResult r = engine->generate({.prompt = {5, 6, 7}, .max_tokens = 9, .ignore_eos = true}, {});
  EXPECT_EQ(r.tokens.size(), 9u);
  EXPECT_EQ(engine->tokenizer(), nullptr);
  EXPECT_THROW(engine->submit({.text = "words"}), Error);
  EXPECT_TRUE(engine->idle());
}

}  // namespace
}  // namespace kv2::test
