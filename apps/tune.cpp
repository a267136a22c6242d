// SPDX-License-Identifier: Apache-2.0
// kv2 tune MODEL --bits 2.5 --text FILE: the cache of least divergence within a budget, and the command that
// uses it.
#include "apps/tune.h"

#include <fmt/format.h>

#include "apps/command_line.h"
#include "apps/eval.h"
#include "base/check.h"
#include "base/log.h"
#include "eval/tune.h"

namespace kv2::app {
namespace {

struct Options {
  ModelOptions model;
  TokenSource source;
  std::vector<std::string> kv;
  std::string calibration;
  TuneOptions tune;
  bool json = false;
};

void print(const Options& o, const TuneResult& r, const RunRecord& record) {
  const std::string command =
      fmt::format("kv2 run {} {}{}", shell_quoted(o.model.model), run_options(r.best().spec),
                  o.calibration.empty() ? "" : " --calibration " + shell_quoted(o.calibration));
  if (o.json) {
    for (const TuneChoice& c : r.finalists) fmt::print("{}", record.stamp(to_json(c.result) + "\n"));
    log_info(command);
    return;
  }
  std::vector<DivergenceResult> rows;
  for (const TuneChoice& c : r.finalists) {
    rows.push_back(c.result);
    rows.back().method += fmt::format(" [{}+{}]", c.spec.sink_tokens, c.spec.recent_tokens);
  }
  fmt::print("{}{} candidates measured; best at {:.4g} {} bits:\n\n{}\n", to_table(rows), r.measured,
             r.best().bits, o.tune.all_in_tokens > 0 ? "all-in" : "history", command);
}

void run(const Options& o) {
  Session s = open_judge(o.model, o.tune.chunk_tokens);
  const std::optional<Calibration> calibration = find_calibration(*s.model, o.calibration);
  const std::vector<int32_t> tokens = o.source.read(s);
  log_info(fmt::format("searching for {} {} bits per element{}", o.tune.bits,
                       o.tune.all_in_tokens > 0 ? "all-in" : "history",
                       o.tune.all_in_tokens > 0 ? fmt::format(" at {} tokens", o.tune.all_in_tokens)
                                                : std::string(", 320 tokens in bf16")));
  TuneOptions options = o.tune;
  options.model = shell_quoted(o.model.model);
  const TuneResult r = tune(*s.model, tokens, calibration ? &*calibration : nullptr, split_methods(o.kv),
                            options, [](const std::string& line) { log_info(line); });
  print(o, r, RunRecord(s, o.model, tokens, calibration));
}

}  // namespace

void add_tune(CLI::App& program) {
  auto* app = program.add_subcommand("tune", "search the best cache within a budget of bits");
  auto o = std::make_shared<Options>();
  o->model.add_to(*app);
  o->source.add_to(*app);
  add_kv_list(*app, o->kv, "kv2,oscar2,quarot2");
  app->add_option("--bits", o->tune.bits, "bits per element of the history, or all-in with --at")
      ->check(CLI::Range(0.1, 16.0))
      ->capture_default_str();
  app->add_option("--at", o->tune.all_in_tokens,
                  "count everything allocated for a sequence of so many tokens; windows are searched too")
      ->check(at_least(1));
  app->add_option("--calibration", o->calibration, "file of `kv2 calibrate`; default: as for run");
  app->add_option("--short", o->tune.short_tokens, "tokens that candidates are ranked on")
      ->capture_default_str();
  app->add_option("--long", o->tune.long_tokens, "tokens that the best are confirmed on")
      ->capture_default_str();
  app->add_option("--rounds", o->tune.rounds, "of coordinate search")->capture_default_str();
  app->add_flag("--json", o->json, "the finalists as JSON lines");
  app->callback([o] { run(*o); });
}

}  // namespace kv2::app
