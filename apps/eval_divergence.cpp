// SPDX-License-Identifier: Apache-2.0
// kv2 eval ppl|kld MODEL: perplexity and KL divergence from bf16 on a text.
#include "eval/divergence.h"

#include <fmt/format.h>

#include "apps/eval.h"

namespace kv2::app {
namespace {

struct Options {
  EvalOptions eval;
  TokenSource source;
  DivergenceOptions divergence;
  bool details = false;  // by position, and beside the best other method
};

void run(const Options& o) {
  o.eval.check();
  Session s = open_judge(o.eval.model, o.divergence.chunk_tokens);
  const std::vector<CacheSpec> specs = o.eval.specs(*s.model);
  const auto calibration = calibration_for(s, o.eval.model, specs, o.eval.cache.calibration);
  const std::vector<int32_t> tokens = o.source.read(s);
  const auto results =
      measure_divergence(*s.model, tokens, specs, calibration ? &*calibration : nullptr, o.divergence);
  if (!o.eval.json) {
    fmt::print("{}", to_table(results));
    if (o.details) fmt::print("{}{}", to_bucket_table(results), to_rival_table(results));
    return;
  }
  const RunRecord record(s, o.eval.model, tokens, calibration, o.eval.schedule);
  for (const auto& r : results) fmt::print("{}", record.stamp(to_json(r) + "\n"));
}

}  // namespace

void add_divergence_options(CLI::App& app, TokenSource& source, DivergenceOptions& o) {
  source.add_to(app);
  app.add_option("--window", o.window, "tokens per window; default: the model's context");
  app.add_option("--max-tokens", o.max_tokens, "of the text; default: all")->check(at_least(0));
  app.add_option("--chunk", o.chunk_tokens, "tokens per forward")->check(CLI::Range(1, 1 << 14));
}

void add_eval_divergence(CLI::App& eval) {
  for (const auto& [name, help] :
       {std::pair{"ppl", "perplexity of each method"},
        std::pair{"kld", "KL divergence from bf16, flips and perplexity of each method"}}) {
    auto* app = eval.add_subcommand(name, help);
    auto o = std::make_shared<Options>();
    o->eval.add_to(*app, "bf16,quarot2");
    o->eval.add_schedule_to(*app);
    add_divergence_options(*app, o->source, o->divergence);
    app->add_option("--stride", o->divergence.stride,
                    "tokens between the beginnings of windows, which then overlap; default: the window")
        ->check(at_least(1));
    o->details = std::string(name) == "kld";
    app->callback([o] { run(*o); });
  }
}

}  // namespace kv2::app
