// SPDX-License-Identifier: Apache-2.0
// kv2 eval ppl|kld|ablation MODEL: judges, several methods in one run over the same weights and text.
#include <fmt/format.h>

#include "apps/options.h"
#include "base/check.h"
#include "base/log.h"
#include "eval/ablation.h"
#include "eval/divergence.h"

namespace kv2::app {
namespace {

struct Options {
  ModelOptions model;
  CacheOptions cache;
  TokenSource source;
  std::vector<std::string> kv;
  DivergenceOptions divergence;
  bool json = false;
};

std::optional<Calibration> calibration_for(const Session& s, const std::vector<CacheSpec>& specs,
                                           const std::string& path) {
  bool needed = !path.empty();
  for (const CacheSpec& spec : specs) needed |= spec.method.needs_calibration();
  return needed ? find_calibration(*s.model, path) : std::nullopt;
}

void run_divergence(const Options& o) {
  catch_interrupts();
  std::vector<CacheSpec> specs;
  for (const std::string& kv : split_methods(o.kv)) specs.push_back(o.cache.spec(kv));
  Session s = open_session(o.model, o.divergence.chunk_tokens);
  log_info(fmt::format("backend      {}", s.backend->describe()));
  const auto calibration = calibration_for(s, specs, o.cache.calibration);
  const auto results = measure_divergence(*s.model, o.source.read(s), specs,
                                          calibration ? &*calibration : nullptr, o.divergence);
  if (o.json)
    for (const auto& r : results) fmt::print("{}\n", to_json(r));
  else
    fmt::print("{}", to_table(results));
}

void run_ablation(const Options& o) {
  catch_interrupts();
  Session s = open_session(o.model, o.divergence.chunk_tokens);
  const auto calibration = find_calibration(*s.model, o.cache.calibration);
  if (!calibration)
    throw_error(ErrorCode::BadArgument, "the ablation needs a calibration; make one: kv2 calibrate {}",
                o.model.model);
  fmt::print("{}", quality_report(*s.model, o.source.read(s), *calibration, o.divergence));
}

void add_common(CLI::App& app, Options& o) {
  o.model.add_to(app);
  o.cache.add_to(app);
  o.source.add_to(app);
  app.add_option("--window", o.divergence.window, "tokens per window; default: the model's context");
  app.add_option("--max-tokens", o.divergence.max_tokens, "of the text; default: all");
  app.add_option("--chunk", o.divergence.chunk_tokens, "tokens per forward")->check(CLI::Range(1, 1 << 14));
}

}  // namespace

void add_eval(CLI::App& program) {
  auto* eval = program.add_subcommand("eval", "judge methods on a text");
  eval->require_subcommand(1);
  for (const auto& [name, help] :
       {std::pair{"ppl", "perplexity of each method"},
        std::pair{"kld", "KL divergence from bf16, flips and perplexity of each method"}}) {
    auto* app = eval->add_subcommand(name, help);
    auto o = std::make_shared<Options>();
    add_common(*app, *o);
    add_kv_list(*app, o->kv, "bf16,quarot2");
    app->add_flag("--json", o->json, "one JSON object per method");
    app->callback([o] { run_divergence(*o); });
  }
  auto* app = eval->add_subcommand("ablation", "the tables of docs/quality.md");
  auto o = std::make_shared<Options>();
  add_common(*app, *o);
  app->callback([o] { run_ablation(*o); });
}

}  // namespace kv2::app
