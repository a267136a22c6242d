// SPDX-License-Identifier: Apache-2.0
// What the judges of `kv2 eval` share: one small file per judge (eval_*.cpp), each adding itself to `eval`.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/options.h"
#include "eval/divergence.h"

namespace kv2::app {

/// A model and the methods that one run judges on it.
struct EvalOptions {
  ModelOptions model;
  CacheOptions cache;
  std::vector<std::string> kv;
  std::string schedule;  // --schedule; empty: the windows of `cache` for all
  bool json = false;

  /// MODEL, the cache's options, --kv with these defaults (kv2 in quarot2's place where a calibration is
  /// found), and --json.
  void add_to(CLI::App& app, const std::string& default_kv);
  /// --schedule, after add_to: for judges that can read prompts in bf16.
  void add_schedule_to(CLI::App& app);
  /// Errors: BadArgument for what is wrong with --kv or --schedule; asked before a model is loaded.
  void check() const;
  /// What is judged of this model, said on stderr where it was not asked for by name.
  std::vector<CacheSpec> specs(const Model& model) const;

 private:
  std::vector<CacheSpec> parsed(const std::vector<std::string>& texts) const;

  bool by_name() const { return kv_option_->count() > 0; }

  const CLI::Option* kv_option_ = nullptr;
  std::vector<const CLI::Option*> by_hand_;  // what --schedule sets
};

/// What a run was: part, as "run", of every JSON line that it prints, so that lines can be told apart and
/// repeated when several files are put together.
class RunRecord {
 public:
  /// schedule: that was asked for; empty: none.
  RunRecord(const Session& session, const ModelOptions& model, std::span<const int32_t> tokens,
            const std::optional<Calibration>& calibration, const std::string& schedule = "");
  /// JSON lines with the record in each.
  std::string stamp(const std::string& json_lines) const;

 private:
  std::string json_;
};

/// A session for a judge; one line on stderr says what computes.
Session open_judge(const ModelOptions& options, int max_rows);
/// The calibration that these methods need or that was given at `path`; nullopt when none is needed. Errors:
/// those of find_calibration and require_calibration.
std::optional<Calibration> calibration_for(const Session& session, const ModelOptions& options,
                                           const std::vector<CacheSpec>& specs, const std::string& path);

/// A text and how a judge walks it: --text, --tokens, --window, --max-tokens, --chunk.
void add_divergence_options(CLI::App& app, TokenSource& source, DivergenceOptions& options);

// Judges: each adds its subcommands.
void add_eval_divergence(CLI::App& eval);  // ppl, kld
void add_eval_ablation(CLI::App& eval);
void add_eval_needle(CLI::App& eval);
void add_eval_ruler(CLI::App& eval);
void add_eval_generate(CLI::App& eval);
void add_eval_attend(CLI::App& eval);
void add_eval_norms(CLI::App& eval);
void add_eval_report(CLI::App& eval);

}  // namespace kv2::app
