// SPDX-License-Identifier: Apache-2.0
// kv2 eval JUDGE MODEL: judges, several methods in one run over the same weights and text.
#include "apps/eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/command_line.h"
#include "base/check.h"
#include "base/log.h"
#include "base/without_repeats.h"
#include "calibrate/text_hash.h"
#include "eval/schedule.h"

namespace kv2::app {

void EvalOptions::add_to(CLI::App& app, const std::string& default_kv) {
  model.add_to(app);
  cache.add_to(app);
  CLI::Option* const option = add_kv_list(app, kv, default_kv);
  option->description(option->get_description() +
                      "; without it kv2 in quarot2's place where a calibration is found");
  kv_option_ = option;
  app.add_flag("--json", json, "JSON lines instead of a table");
}

void EvalOptions::add_schedule_to(CLI::App& app) {
  for (const char* name : {"--prefill", "--sink", "--recent"}) by_hand_.push_back(app.get_option(name));
  std::string help =
      "instead of --prefill, --sink and --recent: paper (each method its own paper's), or the method whose "
      "paper's all shall follow";
  for (const Schedule& s : schedules())
    help += fmt::format("\n  {}: --prefill {} --sink {} --recent {} (paper: {})", s.method,
                        s.prefill == PrefillPolicy::Exact ? "exact" : "windowed", s.sink_tokens,
                        s.recent_tokens, s.of_paper);
  const CacheSpec own;
  help += fmt::format(
      "\n  kv2, which is of no paper, keeps under paper its own windows: --prefill windowed --sink {} "
      "--recent {}; "
      "so does bf16; other methods are refused",
      own.sink_tokens, own.recent_tokens);
  app.add_option("--schedule", schedule, help)->type_name("NAME");
}

std::vector<CacheSpec> EvalOptions::parsed(const std::vector<std::string>& texts) const {
  std::vector<CacheSpec> specs = without_repeats(cache.specs(texts));
  if (schedule.empty()) return specs;
  for (const CLI::Option* option : by_hand_)
    if (option->count() > 0)
      throw_error(ErrorCode::BadArgument,
                  "--schedule {} and {}: a schedule says that itself; give one of them", schedule,
                  option->get_name());
  return under_schedule(std::move(specs), schedule);
}

void EvalOptions::check() const {
  if (by_name())
    (void)parsed(kv);
  else
    check_default_methods(split_methods(kv), [&](const auto& texts) { (void)parsed(texts); });
}

std::vector<CacheSpec> EvalOptions::specs(const Model& model) const {
  std::vector<std::string> texts = split_methods(kv);
  if (!by_name())
    texts = default_methods(std::move(texts), calibration_file(model, cache.calibration).has_value(),
                            this->model.model);
  std::vector<CacheSpec> specs = parsed(texts);
  if (!by_name() || !schedule.empty())
    for (const CacheSpec& spec : specs) log_info("kv           " + spec.describe());
  return specs;
}

RunRecord::RunRecord(const Session& session, const ModelOptions& model, std::span<const int32_t> tokens,
                     const std::optional<Calibration>& calibration, const std::string& schedule) {
  const ModelConfig& config = session.model->config();
  nlohmann::ordered_json run = {{"version", KV2_VERSION},
                                {"command", command_line()},
                                {"model", config.name.empty() ? model.model : config.name},
                                {"fingerprint", session.model->fingerprint()},
                                {"text_hash", hash_tokens(tokens)},
                                {"text_tokens", tokens.size()},
                                {"backend", session.backend->describe()}};
  if (calibration) {
    const auto source = calibration->notes.find("source");
    run["calibration"] = fmt::format("{} tokens, {}, text {}", calibration->n_tokens,
                                     source == calibration->notes.end() ? "?" : source->second,
                                     calibration->text_hash.substr(0, 12));
  }
  if (!schedule.empty()) run["schedule"] = schedule;
  json_ = run.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string RunRecord::stamp(const std::string& json_lines) const {
  std::string out;
  for (size_t begin = 0; begin < json_lines.size();) {
    const size_t end = std::min(json_lines.find('\n', begin), json_lines.size());
    const size_t brace = json_lines.rfind('}', end - 1);  // of the object, which is a line's last character
    out += json_lines.substr(begin, brace - begin) + ",\"run\":" + json_ + "}\n";
    begin = end + 1;
  }
  return out;
}

Session open_judge(const ModelOptions& options, int max_rows) {
  catch_interrupts();
  Session s = open_session(options, max_rows);
  log_info(fmt::format("backend      {}", s.backend->describe()));
  return s;
}

std::optional<Calibration> calibration_for(const Session& session, const ModelOptions& options,
                                           const std::vector<CacheSpec>& specs, const std::string& path) {
  bool needed = !path.empty();
  for (const CacheSpec& spec : specs) needed |= spec.method.needs_calibration();
  if (!needed) return std::nullopt;
  std::optional<Calibration> calibration = find_calibration(*session.model, path);
  require_calibration(specs, calibration, options);
  return calibration;
}

void add_eval(CLI::App& program) {
  auto* eval = program.add_subcommand("eval", "judge methods: each judge takes several with --kv");
  eval->require_subcommand(1);
  add_eval_divergence(*eval);
  add_eval_ablation(*eval);
  add_eval_needle(*eval);
  add_eval_ruler(*eval);
  add_eval_generate(*eval);
  add_eval_attend(*eval);
  add_eval_norms(*eval);
  add_eval_report(*eval);
}

}  // namespace kv2::app
