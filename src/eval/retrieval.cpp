// SPDX-License-Identifier: Apache-2.0
#include "eval/retrieval.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "engine/sampler.h"
#include "eval/batch_feed.h"
#include "eval/history.h"
#include "ops/arg_max.h"

namespace kv2 {
namespace {

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c += 'a' - 'A';
  return text;
}

/// A free answer on its way.
struct Answer {
  size_t question;
  SequenceId sequence;
  std::vector<int32_t> tokens;
};

}  // namespace

double substring_score(const std::string& said, const std::vector<std::string>& values) {
  if (values.empty()) return -1;
  const std::string text = lower(said);
  double found = 0;
  for (const std::string& v : values) found += text.find(lower(v)) != std::string::npos;
  return found / static_cast<double>(values.size());
}

void require_in_context(std::string_view what, int64_t tokens, const ModelConfig& config, PastContext past) {
  if (past == PastContext::Refuse && tokens > config.context)
    throw_error(ErrorCode::BadArgument,
                "{}: {} tokens are past the {} positions this model was trained for; --beyond-context runs "
                "them all the same",
                what, tokens, config.context);
}

namespace {

constexpr int64_t kNever = INT64_MAX;

/// Tokens that a set's texts are short of for any of their queries to read a code; 0: none.
int64_t short_of_history(const HaystackSet& set, const CacheSpec& spec) {
  const int64_t first = first_position_with_history(spec);
  int64_t least = kNever;
  for (const Haystack& h : set.haystacks)
    for (const RetrievalQuestion& q : h.questions) {
      const auto prompt = static_cast<int64_t>(h.ids.size() + q.question.size());
      const int64_t last = prompt + static_cast<int64_t>(q.answer.size()) - 2;  // the last token asks nothing
      if (spec.prefill == PrefillPolicy::Exact && last < prompt) continue;      // only the prompt asks
      least = std::min(least, std::max<int64_t>(0, first - last));
    }
  return least;
}

}  // namespace

void require_history(const HaystackSet& set, const std::vector<CacheSpec>& specs) {
  for (const CacheSpec& spec : specs) {
    if (!spec.method.quantized()) continue;
    const int64_t missing = short_of_history(set, spec);
    if (missing == kNever)
      throw_error(ErrorCode::BadArgument,
                  "{}: answers of one token ask nothing behind a prompt that reads bf16, so {} would not be "
                  "judged; ask with --prefill windowed",
                  set.task, spec.method.name);
    if (missing > 0)
      throw_error(ErrorCode::BadArgument,
                  "{}: in texts of {} tokens no query reads a code of {}, whose history begins at position "
                  "{}: {} or more tokens are needed ({}), or less in bf16 (--sink, --recent)",
                  set.task, set.true_length(), spec.method.name, first_position_with_history(spec),
                  set.true_length() + missing, set.made ? "--length" : "in the haystacks' file");
  }
}

RetrievalRunner::RetrievalRunner(Model& model, const CacheSpec& spec, const Calibration* calibration,
                                 int64_t context, const RetrievalOptions& options, const Tokenizer* tokenizer)
    : model_(model), options_(options), context_(context), tokenizer_(tokenizer) {
  require_in_context("haystacks", context, model.config(), options.past_context);
  if (options.chunk_tokens < 1 || options.most_questions < 1 || options.answer_tokens < 0)
    throw_error(ErrorCode::BadArgument,
                "retrieval: chunks of {} tokens, {} questions at once, {} answer tokens",
                options.chunk_tokens, options.most_questions, options.answer_tokens);
  const int chunk = std::min(options.chunk_tokens, model.max_rows());
  const int together = std::min(options.most_questions, model.max_rows());
  const CacheCapacity capacity = capacity_that_fits(
      model, spec, {.context_tokens = context, .n_sequences = together + 1, .chunk_tokens = chunk}, 2);
  options_.most_questions = capacity.n_sequences - 1;
  cache_ = make_cache(model, spec, calibration, capacity);
}

void RetrievalRunner::check(const Haystack& h) const {
  if (h.ids.empty()) throw_error(ErrorCode::BadArgument, "haystack: no tokens");
  require_in_vocabulary(h.ids, model_.config(), "haystack");
  for (const RetrievalQuestion& q : h.questions) {
    if (q.question.empty() || q.answer.empty())
      throw_error(ErrorCode::BadArgument,
                  "question {} has {} question tokens and {} answer tokens, both need one",
                  &q - h.questions.data(), q.question.size(), q.answer.size());
    require_in_vocabulary(q.question, model_.config(), "question");
    require_in_vocabulary(q.answer, model_.config(), "answer");
    const auto n = static_cast<int64_t>(h.ids.size() + q.question.size() + q.answer.size());
    if (n > context_)
      throw_error(ErrorCode::BadArgument, "haystack, question and answer are {} tokens, the cache holds {}",
                  n, context_);
  }
}

/// The question belongs to the prompt, of which `exact` reads everything in bf16.
int64_t RetrievalRunner::full_until(SequenceId base, const RetrievalQuestion& q) const {
  if (cache_->spec().prefill != PrefillPolicy::Exact) return 0;
  return cache_->n_tokens(base) + static_cast<int64_t>(q.question.size());
}

SequenceId RetrievalRunner::read(const std::vector<int32_t>& ids, Progress& progress) {
  const std::optional<SequenceId> base = cache_->open();
  KV2_CHECK(base.has_value());
  const auto n = static_cast<int64_t>(ids.size());
  const int chunk = cache_->plan().capacity.chunk_tokens;
  const int64_t full_until = cache_->spec().prefill == PrefillPolicy::Exact ? n : 0;
  for (int64_t begin = 0; begin < n; begin += chunk) {
    throw_if_interrupted();
    const auto piece = std::span(ids).subspan(begin, std::min<int64_t>(chunk, n - begin));
    feed(model_, *cache_, {.sequence = *base, .tokens = piece, .full_until = full_until});
    progress.advance(static_cast<int64_t>(piece.size()));
  }
  return *base;
}

std::vector<SequenceId> RetrievalRunner::fork(SequenceId base, size_t n) {
  std::vector<SequenceId> out;
  for (size_t i = 0; i < n; i++) {
    const std::optional<SequenceId> id = cache_->fork(base);
    KV2_CHECK(id.has_value(), "fork {} of {}", i, n);  // planned for
    out.push_back(*id);
  }
  return out;
}

void RetrievalRunner::force(SequenceId base, std::span<const RetrievalQuestion> questions,
                            std::span<AnswerScore> scores) {
  const std::vector<SequenceId> forks = fork(base, questions.size());
  std::vector<std::vector<int32_t>> texts;
  std::vector<BatchPart> parts;
  for (size_t i = 0; i < questions.size(); i++) {
    const RetrievalQuestion& q = questions[i];
    texts.push_back(q.question);
    texts.back().insert(texts.back().end(), q.answer.begin(),
                        q.answer.end() - 1);  // the last predicts nothing
    scores[i].exact = true;
  }
  for (size_t i = 0; i < questions.size(); i++)
    parts.push_back({.sequence = forks[i],
                     .tokens = texts[i],
                     .first_logit_row = questions[i].question.size() - 1,
                     .full_until = full_until(base, questions[i])});
  feed_batch(model_, *cache_, parts, [&](size_t part, size_t row, std::span<const float> logits) {
    const RetrievalQuestion& q = questions[part];
    scores[part].exact &= arg_max(logits) == q.answer[row - (q.question.size() - 1)];
  });
  for (const SequenceId id : forks) cache_->close(id);
}

void RetrievalRunner::answer_freely(SequenceId base, std::span<const RetrievalQuestion> questions,
                                    std::span<AnswerScore> scores) {
  std::vector<Answer> running;
  std::vector<BatchPart> parts;
  for (size_t i = 0; i < questions.size(); i++) {
    if (questions[i].values.empty()) continue;
    scores[i].substring = 1;  // an exact answer says all values
    if (!scores[i].exact) running.push_back({i, {}, {}});
  }
  const std::vector<SequenceId> forks = fork(base, running.size());
  for (size_t i = 0; i < running.size(); i++) {
    running[i].sequence = forks[i];
    const RetrievalQuestion& q = questions[running[i].question];
    parts.push_back({.sequence = forks[i],
                     .tokens = q.question,
                     .first_logit_row = q.question.size() - 1,
                     .full_until = full_until(base, q)});
  }
  const std::vector<int32_t>& eos = model_.config().eos;
  while (!running.empty()) {
    std::vector<uint8_t> done(running.size());
    feed_batch(model_, *cache_, parts, [&](size_t part, size_t, std::span<const float> logits) {
      Answer& a = running[part];
      const RetrievalQuestion& q = questions[a.question];
      a.tokens.push_back(require_token(arg_max(logits), logits.size()));
      const std::string said = tokenizer_->decode(a.tokens, Tokenizer::Special::Parse);
      scores[a.question].substring = substring_score(said, q.values);
      done[part] = std::find(eos.begin(), eos.end(), a.tokens.back()) != eos.end() ||
                   static_cast<int64_t>(a.tokens.size()) >= options_.answer_tokens ||
                   cache_->n_tokens(a.sequence) >= context_ || scores[a.question].substring == 1;
    });
    std::vector<Answer> rest;
    for (size_t i = 0; i < running.size(); i++)
      if (!done[i]) rest.push_back(std::move(running[i]));
    running = std::move(rest);
    parts.clear();
    for (const Answer& a : running)
      parts.push_back({.sequence = a.sequence,
                       .tokens = std::span(a.tokens).last(1),
                       .full_until = full_until(base, questions[a.question])});
  }
  for (const SequenceId id : forks) cache_->close(id);
}

std::vector<AnswerScore> RetrievalRunner::ask(const Haystack& h, Progress& progress) {
  check(h);
  const SequenceId base = read(h.ids, progress);
  std::vector<AnswerScore> out(h.questions.size());
  const auto most = static_cast<size_t>(options_.most_questions);
  for (size_t from = 0; from < out.size(); from += most) {
    const size_t n = std::min(most, out.size() - from);
    const auto questions = std::span(h.questions).subspan(from, n);
    const auto scores = std::span(out).subspan(from, n);
    force(base, questions, scores);
    if (tokenizer_ != nullptr && options_.answer_tokens > 0) answer_freely(base, questions, scores);
  }
  cache_->close(base);
  return out;
}

void RetrievalScore::average(std::span<const AnswerScore> answers) {
  questions = static_cast<int64_t>(answers.size());
  double n_exact = 0, sum = 0;
  bool measured = true;
  for (const AnswerScore& a : answers) {
    n_exact += a.exact;
    sum += a.substring;
    measured &= a.substring >= 0;
  }
  exact = n_exact / static_cast<double>(questions);
  substring = measured ? sum / static_cast<double>(questions) : -1;
}

void RetrievalScore::describe(const CacheSpec& spec, const CachePlan& plan, const HaystackSet& set,
                              const ModelConfig& config) {
  method = spec.method_text();
  history_bits = plan.layout.history_bits();
  task = set.task;
  length = set.length;
  sink = spec.sink_tokens;
  recent = spec.recent_tokens;
  prefill = spec.prefill == PrefillPolicy::Exact ? "exact" : "windowed";
  seed = set.seed;
  context = config.context;
  beyond_context = set.true_length() > context;
}

std::string RetrievalScore::length_text() const {
  return fmt::format("{}{}", length, beyond_context ? "*" : "");
}

void RetrievalScore::add_to(nlohmann::ordered_json& j) const {
  j["method"] = method;
  j["history_bits"] = history_bits;
  j["task"] = task;
  j["length"] = length;
  j["questions"] = questions;
  j["exact"] = exact;
  if (substring >= 0) j["substring"] = substring;
  j["sink"] = sink;
  j["recent"] = recent;
  j["prefill"] = prefill;
  j["seed"] = seed;
  if (!beyond_context) return;
  j["context"] = context;
  j["beyond_context"] = true;
}

std::string star_note(bool any_beyond, int64_t context) {
  if (!any_beyond) return "";
  return fmt::format("* past the model's context: its positions from {} on were never trained\n", context);
}

}  // namespace kv2
