// SPDX-License-Identifier: Apache-2.0
#include "eval/ruler.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/without_repeats.h"

namespace kv2 {
namespace {

RulerResult judge(RetrievalRunner& runner, const HaystackSet& set, Progress& progress) {
  RulerResult r;
  std::vector<AnswerScore> answers;
  for (const Haystack& h : set.haystacks) {
    const std::vector<AnswerScore> own = runner.ask(h, progress);
    answers.insert(answers.end(), own.begin(), own.end());
    r.needles += h.n_needles;
  }
  r.average(answers);
  r.haystacks = static_cast<int64_t>(set.haystacks.size());
  r.all_in_bits = runner.plan().all_in_bits(set.true_length());
  return r;
}

}  // namespace

std::vector<HaystackSet> make_haystacks(const HaystackWriter& writer, const RulerPlan& plan) {
  if (plan.questions < 1 || plan.per_haystack < 1)
    throw_error(ErrorCode::BadArgument, "{} questions, {} of a haystack: both must be 1 at least",
                plan.questions, plan.per_haystack);
  std::vector<HaystackSet> out;
  for (const int64_t length : without_repeats(plan.lengths)) {
    for (const RetrievalTask& task : without_repeats(plan.tasks)) {
      HaystackSet set{
          .task = task.text(), .length = length, .seed = plan.seed, .haystacks = {}, .made = true};
      for (int64_t left = plan.questions, index = 0; left > 0; index++) {
        const HaystackRequest request{
            .task = task,
            .length = length,
            .answer_tokens = plan.answer_tokens,
            .max_questions = static_cast<int>(std::min<int64_t>(left, plan.per_haystack)),
            .depths = {}};
        set.haystacks.push_back(writer.make(request, plan.seed, index));
        left -= static_cast<int64_t>(set.haystacks.back().questions.size());
      }
      out.push_back(std::move(set));
    }
  }
  return out;
}

std::vector<RulerResult> measure_ruler(Model& model, const std::vector<CacheSpec>& specs,
                                       const Calibration* calibration, const std::vector<HaystackSet>& sets,
                                       const RetrievalOptions& options, const Tokenizer* tokenizer,
                                       const std::function<void(const RulerResult&)>& on_result) {
  int64_t total = 0;
  for (const HaystackSet& set : sets) {
    if (set.n_questions() == 0) throw_error(ErrorCode::BadArgument, "haystacks '{}' ask nothing", set.task);
    require_in_context(set.task + " with question and answer", set.true_length(), model.config(),
                       options.past_context);
    require_history(set, specs);
    total += set.n_tokens();
  }
  Progress progress("ruler", total * static_cast<int64_t>(specs.size()));
  std::vector<RulerResult> out;
  for (const HaystackSet& set : sets) {
    RetrievalOptions together = options;
    together.most_questions = std::min(options.most_questions, set.most_questions());
    // A free answer ends where the context does, unless its text went past that before.
    const bool beyond = set.true_length() > model.config().context;
    const int64_t room = set.context(options.answer_tokens);
    const int64_t context = beyond ? room : std::min<int64_t>(room, model.config().context);
    for (const CacheSpec& spec : specs) {
      const auto start = std::chrono::steady_clock::now();
      RetrievalRunner runner(model, spec, calibration, context, together, tokenizer);
      RulerResult r = judge(runner, set, progress);
      r.describe(spec, runner.plan(), set, model.config());
      r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (on_result) on_result(r);
      out.push_back(std::move(r));
    }
  }
  return out;
}

}  // namespace kv2
