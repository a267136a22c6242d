// SPDX-License-Identifier: Apache-2.0
// kv2 eval attend MODEL: where a method loses, by layer and KV head.
#include <fmt/format.h>

#include "apps/eval.h"
#include "eval/attention_error.h"

namespace kv2::app {
namespace {

struct Options {
  EvalOptions eval;
  TokenSource source;
  AttentionErrorOptions attend;
  bool heads = false;
};

void run(const Options& o) {
  o.eval.check();
  Session s = open_judge(o.eval.model, o.attend.chunk_tokens);
  const std::vector<CacheSpec> specs = o.eval.specs(*s.model);
  const auto calibration = calibration_for(s, o.eval.model, specs, o.eval.cache.calibration);
  const std::vector<int32_t> tokens = o.source.read(s);
  const auto results =
      measure_attention_error(*s.model, tokens, specs, calibration ? &*calibration : nullptr, o.attend);
  if (o.eval.json) {
    const RunRecord record(s, o.eval.model, tokens, calibration);
    for (const auto& r : results) fmt::print("{}", record.stamp(to_json_lines(r)));
    return;
  }
  for (const auto& r : results)
    fmt::print("{}\n", to_table(r, o.heads ? AttentionRows::Heads : AttentionRows::Layers));
}

}  // namespace

void add_eval_attend(CLI::App& eval) {
  auto* app = eval.add_subcommand("attend", "errors of logits and attention output by layer and head");
  auto o = std::make_shared<Options>();
  o->eval.add_to(*app, "quarot2");
  o->source.add_to(*app);
  app->add_option("--max-tokens", o->attend.max_tokens, "of the text; default: all")->check(at_least(0));
  app->add_option("--chunk", o->attend.chunk_tokens, "tokens per forward")->check(CLI::Range(1, 1 << 14));
  app->add_option("--stride", o->attend.query_stride, "one position in so many asks")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_flag("--heads", o->heads, "a row per KV head instead of one per layer");
  app->callback([o] { run(*o); });
}

}  // namespace kv2::app
