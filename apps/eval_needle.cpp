// SPDX-License-Identifier: Apache-2.0
// kv2 eval needle MODEL: single needles over depth x length.
#include "eval/needle.h"

#include <fmt/format.h>

#include "apps/retrieval_options.h"

namespace kv2::app {
namespace {

struct Options {
  RetrievalFlags flags;
  NeedlePlan plan;
};

void run(const Options& o) {
  o.flags.eval.check();
  NeedlePlan plan = o.plan;
  plan.task = depth_task(o.flags.one_task("needle"), plan.n_depths);
  Session s = open_judge(o.flags.eval.model, o.flags.chunk);
  const std::vector<CacheSpec> specs = o.flags.eval.specs(*s.model);
  plan.lengths = o.flags.parsed_lengths(*s.model, specs);
  plan.answer_tokens = o.flags.answer_tokens;
  plan.seed = o.flags.seed;
  const HaystackWriter writer = o.flags.writer(s);
  const auto calibration = calibration_for(s, o.flags.eval.model, specs, o.flags.eval.cache.calibration);
  const std::vector<NeedleSet> sets = make_needles(writer, plan);
  say_beyond_context(sets, s.model->config());
  const RunRecord record(s, o.flags.eval.model, ids_of(sets), calibration, o.flags.eval.schedule);
  const auto print = [&](std::span<const NeedleCell> row) {
    if (!o.flags.eval.json) return;
    for (const NeedleCell& c : row) fmt::print("{}", record.stamp(to_json(c) + "\n"));
    std::fflush(stdout);
  };
  const auto cells = measure_needles(*s.model, specs, calibration ? &*calibration : nullptr, sets,
                                     o.flags.options(plan.n_depths),
                                     o.flags.substring() ? s.tokenizer.get() : nullptr, print);
  if (!o.flags.eval.json) fmt::print("{}", to_table(cells));
}

}  // namespace

void add_eval_needle(CLI::App& eval) {
  auto* app = eval.add_subcommand("needle", "single needles over depth x length, a heat map per method");
  auto o = std::make_shared<Options>();
  o->flags.add_to(*app, TaskCount::One);
  app->add_option("--depths", o->plan.n_depths, "depths from 0 to 100 %")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--samples", o->plan.samples, "needles of each depth and length")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app->callback([o] { run(*o); });
}

}  // namespace kv2::app
