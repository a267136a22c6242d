// SPDX-License-Identifier: Apache-2.0
// kv2 eval ruler MODEL: the NIAH tasks of RULER, made here; also writes their haystacks, and text of their
// kind to calibrate on.
#include "eval/ruler.h"

#include <fmt/format.h>

#include "apps/retrieval_options.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "eval/haystack_file.h"
#include "eval/npy.h"

namespace kv2::app {
namespace {

struct Options {
  RetrievalFlags flags;
  RulerPlan plan;
  std::string haystacks, write_haystacks, write_tokens;
  int sequences = 18;
};

RulerPlan plan_of(const Options& o, Model& model, const std::vector<CacheSpec>& specs) {
  RulerPlan plan = o.plan;
  plan.tasks = o.flags.parsed_tasks();
  plan.lengths = o.flags.parsed_lengths(model, specs);
  plan.answer_tokens = o.flags.answer_tokens;
  plan.seed = o.flags.seed;
  return plan;
}

/// Text for `kv2 calibrate MODEL --tokens FILE`.
void write_training_text(const Options& o, const Session& s) {
  const int64_t trained = s.model->config().context;
  if (!o.flags.lengths.empty() && o.flags.lengths.front() > trained)
    throw_error(ErrorCode::BadArgument,
                "--write-tokens: {} tokens are past the {} positions this model was trained for, and a "
                "calibration reads none of those; give --length {} or less",
                o.flags.lengths.front(), trained, trained);
  const RulerPlan plan = plan_of(o, *s.model, {});
  const int64_t length = plan.lengths.front();
  const std::vector<int32_t> ids =
      o.flags.writer(s).training_text(plan.tasks, length, o.sequences, plan.seed);
  write_npy_tokens(o.write_tokens, ids);
  const int held_out = o.sequences > 2 ? 2 : o.sequences - 1;
  log_info(fmt::format("calibrate    kv2 calibrate {} --tokens {} --window {} --n-tokens {} --held-out {}",
                       o.flags.eval.model.model, o.write_tokens, length, length * (o.sequences - held_out),
                       length * held_out));
  fmt::print("{}\n", o.write_tokens);
}

void run(const Options& o) {
  o.flags.eval.check();
  for (const std::string& path : {o.write_haystacks, o.write_tokens})
    if (!path.empty()) require_writable(path);
  if (o.haystacks.empty()) (void)o.flags.parsed_tasks();  // a wrong name is said before a model is loaded
  Session s = open_judge(o.flags.eval.model, o.flags.chunk);
  if (!o.write_tokens.empty()) return write_training_text(o, s);
  std::vector<CacheSpec> specs;  // none where haystacks are only written: nothing has to fit in memory then
  if (o.write_haystacks.empty()) specs = o.flags.eval.specs(*s.model);
  std::vector<HaystackSet> sets;
  if (o.haystacks.empty()) {
    const RulerPlan plan = plan_of(o, *s.model, specs);  // lengths are checked before the tokenizer is missed
    sets = make_haystacks(o.flags.writer(s), plan);
  } else {
    sets = read_haystacks(o.haystacks);
  }
  say_beyond_context(sets, s.model->config());
  if (!o.write_haystacks.empty()) {
    write_haystacks(o.write_haystacks, sets);
    fmt::print("{}\n", o.write_haystacks);
    return;
  }
  const auto calibration = calibration_for(s, o.flags.eval.model, specs, o.flags.eval.cache.calibration);
  const Tokenizer* tokenizer =
      o.flags.substring() ? &s.require_tokenizer("--score exact needs none") : nullptr;
  const RunRecord record(s, o.flags.eval.model, ids_of(sets), calibration, o.flags.eval.schedule);
  const auto print = [&](const RulerResult& r) {
    if (o.flags.eval.json) fmt::print("{}", record.stamp(to_json(r) + "\n")), std::fflush(stdout);
    log_info(fmt::format("{} {} {}: exact {:.1f} % of {} questions, {:.0f} s", r.task, r.length, r.method,
                         100 * r.exact, r.questions, r.seconds));
  };
  const auto results = measure_ruler(*s.model, specs, calibration ? &*calibration : nullptr, sets,
                                     o.flags.options(o.plan.per_haystack), tokenizer, print);
  if (!o.flags.eval.json) fmt::print("{}", to_table(results));
}

}  // namespace

void add_eval_ruler(CLI::App& eval) {
  auto* app = eval.add_subcommand("ruler", "RULER's needle tasks: many needles, keys, values and questions");
  auto o = std::make_shared<Options>();
  o->flags.add_to(*app, TaskCount::Several);
  app->add_option("--questions", o->plan.questions, "of each task and length")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--per-haystack", o->plan.per_haystack, "questions that share a haystack, at most")
      ->check(CLI::Range(1, 1 << 14))
      ->capture_default_str();
  auto* from = app->add_option("--haystacks", o->haystacks,
                               "haystacks of a JSON file instead (format: src/eval/haystack_file.h)");
  // A file says itself which haystacks it has.
  for (const char* of_made : {"--task", "--length", "--words", "--essay", "--seed", "--questions"})
    from->excludes(app->get_option(of_made));
  app->add_option("--write-haystacks", o->write_haystacks, "write the haystacks to such a file and stop");
  app->add_option(
         "--write-tokens", o->write_tokens,
         "write text of these tasks to a .npy file for kv2 calibrate --tokens, and stop: --sequences of the "
         "first --length")
      ->excludes(from);
  app->add_option("--sequences", o->sequences, "of --write-tokens")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app->callback([o] { run(*o); });
}

}  // namespace kv2::app
