// SPDX-License-Identifier: Apache-2.0
// What `eval needle` and `eval ruler` share: tasks, words and essays, lengths, and how answers are scored.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "apps/eval.h"
#include "base/log.h"
#include "eval/haystack.h"
#include "eval/retrieval.h"

namespace kv2::app {

/// How many tasks a judge takes in a run.
enum class TaskCount : uint8_t { One, Several };

struct RetrievalFlags {
  EvalOptions eval;
  std::vector<std::string> tasks;
  std::vector<int64_t> lengths;
  std::string words, essay, score = "both";
  int64_t answer_tokens = 128;
  int chunk = 512;
  uint64_t seed = 0;
  bool beyond_context = false;

  void add_to(CLI::App& app, TaskCount count);
  /// --task, with RULER's eight for "ruler".
  std::vector<RetrievalTask> parsed_tasks() const;
  /// The text of the --task of `judge`, which takes one.
  std::string one_task(const char* judge) const;
  /// --length, or 4,096 (the model's context where that is shorter). Errors: BadArgument past the context
  /// without --beyond-context, OutOfMemory where one past it does not fit in memory twice for one of
  /// `specs` (a haystack and a question): said before any text is made.
  std::vector<int64_t> parsed_lengths(Model& model, const std::vector<CacheSpec>& specs) const;
  HaystackWriter writer(const Session& session) const;
  RetrievalOptions options(int most_questions) const;
  bool substring() const { return score != "exact"; }
  PastContext past_context() const { return beyond_context ? PastContext::Run : PastContext::Refuse; }
};

/// A line on stderr for each set of texts that is longer than the model's context.
template <class Set>
void say_beyond_context(const std::vector<Set>& sets, const ModelConfig& config) {
  for (const HaystackSet& set : sets)
    if (const int64_t n = set.true_length(); n > config.context)
      log_info(fmt::format("beyond       {}: {} tokens, {} more than this model was trained for", set.task, n,
                           n - config.context));
}

/// Everything that is read of these sets, for RunRecord's text.
template <class Set>
std::vector<int32_t> ids_of(const std::vector<Set>& sets) {
  std::vector<int32_t> out;
  for (const HaystackSet& set : sets) {
    const std::vector<int32_t> own = set.all_ids();
    out.insert(out.end(), own.begin(), own.end());
  }
  return out;
}

}  // namespace kv2::app
