// SPDX-License-Identifier: Apache-2.0
// kv2 eval JUDGE MODEL: judges, several methods in one run over the same weights and text.
#include "apps/eval.h"

#include <fmt/format.h>

#include "base/log.h"

namespace kv2::app {

void EvalOptions::add_to(CLI::App& app, const std::string& default_kv) {
  model.add_to(app);
  cache.add_to(app);
  add_kv_list(app, kv, default_kv);
  app.add_flag("--json", json, "JSON lines instead of a table");
}

std::vector<CacheSpec> EvalOptions::specs() const {
  std::vector<CacheSpec> out;
  for (const std::string& text : split_methods(kv)) out.push_back(cache.spec(text));
  return out;
}

Session open_judge(const ModelOptions& options, int max_rows) {
  catch_interrupts();
  Session s = open_session(options, max_rows);
  log_info(fmt::format("backend      {}", s.backend->describe()));
  return s;
}

std::optional<Calibration> calibration_for(const Model& model, const std::vector<CacheSpec>& specs,
                                           const std::string& path) {
  bool needed = !path.empty();
  for (const CacheSpec& spec : specs) needed |= spec.method.needs_calibration();
  return needed ? find_calibration(model, path) : std::nullopt;
}

void add_eval(CLI::App& program) {
  auto* eval = program.add_subcommand("eval", "judge methods: each judge takes several with --kv");
  eval->require_subcommand(1);
  add_eval_divergence(*eval);
  add_eval_ablation(*eval);
  add_eval_needle(*eval);
  add_eval_ruler(*eval);
  add_eval_generate(*eval);
}

}  // namespace kv2::app
