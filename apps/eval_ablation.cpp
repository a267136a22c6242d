// SPDX-License-Identifier: Apache-2.0
// kv2 eval ablation MODEL: the page docs/ablation.md.
#include "eval/ablation.h"

#include <fmt/format.h>

#include "apps/command_line.h"
#include "apps/eval.h"
#include "base/check.h"

namespace kv2::app {
namespace {

struct Options {
  ModelOptions model;
  CacheOptions cache;
  TokenSource source;
  DivergenceOptions divergence;
};

void run(const Options& o) {
  Session s = open_judge(o.model, o.divergence.chunk_tokens);
  const auto calibration = find_calibration(*s.model, o.cache.calibration);
  if (!calibration)
    throw_error(ErrorCode::BadArgument, "the ablation needs a calibration; make one: kv2 calibrate {}",
                o.model.model);
  fmt::print("{}", ablation_report(*s.model, o.source.read(s), *calibration, o.divergence, command_line()));
}

}  // namespace

void add_eval_ablation(CLI::App& eval) {
  auto* app = eval.add_subcommand("ablation", "what each part of oscar2 is worth: the page docs/ablation.md");
  auto o = std::make_shared<Options>();
  o->model.add_to(*app);
  o->cache.add_to(*app);
  add_divergence_options(*app, o->source, o->divergence);
  app->callback([o] { run(*o); });
}

}  // namespace kv2::app
