// SPDX-License-Identifier: Apache-2.0
// measure_ruler(): the retrieval judge. Every method answers the same questions of the same haystacks; scores
// are named for what they are: `exact` (every answer token the arg max, teacher forced) and `substring`
// (RULER's score of freely generated text).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "eval/retrieval.h"

namespace kv2 {

/// Which haystacks: for every length and task, as many as give `questions` questions.
struct RulerPlan {
  std::vector<RetrievalTask> tasks;
  std::vector<int64_t> lengths;
  int64_t questions = 16;  // of a task and length
  int per_haystack = 16;   // at most
  int64_t answer_tokens = 128;
  uint64_t seed = 0;
};
/// One set per length and task, also where one is named twice. Errors: those of HaystackWriter::make, naming
/// the length.
std::vector<HaystackSet> make_haystacks(const HaystackWriter& writer, const RulerPlan& plan);

/// One method on one set.
struct RulerResult : RetrievalScore {
  double all_in_bits = 0;              // at the set's true_length()
  int64_t haystacks = 0, needles = 0;  // needles of all haystacks together
  double seconds = 0;
};

/// Results in order of sets, methods; each is given to on_result as soon as it is there. Progress with ETA on
/// stderr. Errors: those of require_history and RetrievalRunner.
std::vector<RulerResult> measure_ruler(Model& model, const std::vector<CacheSpec>& specs,
                                       const Calibration* calibration, const std::vector<HaystackSet>& sets,
                                       const RetrievalOptions& options, const Tokenizer* tokenizer,
                                       const std::function<void(const RulerResult&)>& on_result);

/// {"judge": "ruler", the score's fields, the fields above}. `seconds` is left out: rows repeat to the byte.
std::string to_json(const RulerResult& r);
/// Tasks and lengths down, methods across: exact and substring in percent.
std::string to_table(const std::vector<RulerResult>& results);

}  // namespace kv2
