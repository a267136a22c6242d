// SPDX-License-Identifier: Apache-2.0
#include "eval/ruler.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"

namespace kv2 {
namespace {

int64_t tokens_of(const HaystackSet& set) {
  int64_t n = 0;
  for (const Haystack& h : set.haystacks) n += static_cast<int64_t>(h.ids.size());
  return n;
}

int most_questions(const HaystackSet& set) {
  size_t most = 1;
  for (const Haystack& h : set.haystacks) most = std::max(most, h.questions.size());
  return static_cast<int>(most);
}

RulerResult judge(RetrievalRunner& runner, const HaystackSet& set, Progress& progress) {
  RulerResult r;
  double exact = 0, substring = 0;
  bool measured = true;
  for (const Haystack& h : set.haystacks) {
    for (const RetrievalScore& s : runner.ask(h, progress)) {
      exact += s.exact;
      substring += s.substring;
      measured &= s.substring >= 0;
    }
    r.needles += h.n_needles;
  }
  r.haystacks = static_cast<int64_t>(set.haystacks.size());
  r.questions = set.n_questions();
  r.exact = exact / static_cast<double>(r.questions);
  r.substring = measured ? substring / static_cast<double>(r.questions) : -1;
  return r;
}

void describe(const CacheSpec& spec, const CachePlan& plan, const HaystackSet& set, RulerResult& r) {
  r.method = spec.method_text();
  r.history_bits = plan.layout.history_bits();
  r.all_in_bits = plan.all_in_bits(set.length);
  r.task = set.task;
  r.length = set.length;
  r.sink = spec.sink_tokens;
  r.recent = spec.recent_tokens;
  r.prefill = spec.prefill == PrefillPolicy::Exact ? "exact" : "windowed";
  r.seed = set.seed;
}

}  // namespace

std::vector<HaystackSet> make_haystacks(const HaystackWriter& writer, const RulerPlan& plan) {
  if (plan.questions < 1 || plan.per_haystack < 1)
    throw_error(ErrorCode::BadArgument, "{} questions, {} of a haystack: both must be 1 at least",
                plan.questions, plan.per_haystack);
  std::vector<HaystackSet> out;
  for (const int64_t length : plan.lengths) {
    for (const RetrievalTask& task : plan.tasks) {
      HaystackSet set{.task = task.text(), .length = length, .seed = plan.seed, .haystacks = {}};
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
    const int64_t context = set.context(0);
    if (context > model.config().context)
      throw_error(ErrorCode::BadArgument,
                  "{} with question and answer is {} tokens, past the model's context of {}", set.task,
                  context, model.config().context);
    total += tokens_of(set);
  }
  Progress progress("ruler", total * static_cast<int64_t>(specs.size()));
  std::vector<RulerResult> out;
  for (const HaystackSet& set : sets) {
    RetrievalOptions together = options;
    together.most_questions = std::min(options.most_questions, most_questions(set));
    // A free answer ends where the context does.
    const int64_t context = std::min<int64_t>(set.context(options.answer_tokens), model.config().context);
    for (const CacheSpec& spec : specs) {
      const auto start = std::chrono::steady_clock::now();
      RetrievalRunner runner(model, spec, calibration, context, together, tokenizer);
      RulerResult r = judge(runner, set, progress);
      describe(spec, runner.plan(), set, r);
      r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (on_result) on_result(r);
      out.push_back(std::move(r));
    }
  }
  return out;
}

}  // namespace kv2
