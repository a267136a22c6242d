// SPDX-License-Identifier: Apache-2.0
// RetrievalRunner: asks a model the questions of haystacks through one method's cache. A haystack is read
// once, in chunks, and forked for every question; the questions of one haystack go through the model as one
// batch. Everything is read under the rule of visibility, the question and the answer too; with
// PrefillPolicy::Exact haystack and question are the prompt. And RetrievalScore, what the judges of retrieval
// say about a method and questions of one kind.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "calibrate/sequence_walk.h"
#include "eval/haystack.h"

namespace kv2 {

/// What is done with a text that is longer than the context its model was trained for: nothing in the cache
/// or in RoPE ends there, but what a model says of positions it never saw is its own affair.
enum class PastContext : uint8_t { Refuse, Run };

/// Throws BadArgument, beginning with `what`, for more tokens than the model's context unless they shall run.
void require_in_context(std::string_view what, int64_t tokens, const ModelConfig& config, PastContext past);

/// Throws BadArgument where no question of a set, nor its answer, reads a code of one of these methods: bf16
/// would be judged under their names. Says how long the texts must be.
void require_history(const HaystackSet& set, const std::vector<CacheSpec>& specs);

struct RetrievalOptions {
  int chunk_tokens = 512;       // of the prefill
  int64_t answer_tokens = 128;  // most tokens of a free answer; 0: no free answers, no substring score
  int most_questions = 16;      // asked together, as far as memory allows
  PastContext past_context = PastContext::Refuse;
};

/// How one question was answered.
struct AnswerScore {
  /// Every token of the answer is the arg max after the tokens before it (teacher forced): what greedy
  /// decoding says, up to the answer's period.
  bool exact = false;
  /// RULER's score of the freely generated text: share of the values that it contains, case ignored. -1: not
  /// asked for, or the question has no values. An exact answer contains them and is not generated again.
  double substring = -1;
};

/// RULER's score of one text: the share of `values` that it contains, ASCII case ignored.
double substring_score(const std::string& said, const std::vector<std::string>& values);

class RetrievalRunner {
 public:
  /// context: tokens of the longest haystack with question and answer. tokenizer: of free answers, may be
  /// nullptr (no substring score). Model and tokenizer must outlive this. Errors: BadArgument past the
  /// model's context (where that is refused), OutOfMemory with what would fit, those of make_cache.
  RetrievalRunner(Model& model, const CacheSpec& spec, const Calibration* calibration, int64_t context,
                  const RetrievalOptions& options, const Tokenizer* tokenizer);

  /// One score per question, in their order. Advances `progress` by the haystack's tokens. Errors:
  /// BadArgument for an empty haystack, question or answer, ids out of the vocabulary, and what is longer
  /// than `context`.
  std::vector<AnswerScore> ask(const Haystack& haystack, Progress& progress);

  const CachePlan& plan() const { return cache_->plan(); }

 private:
  void check(const Haystack& h) const;
  SequenceId read(const std::vector<int32_t>& ids, Progress& progress);
  std::vector<SequenceId> fork(SequenceId base, size_t n);
  void force(SequenceId base, std::span<const RetrievalQuestion> questions, std::span<AnswerScore> scores);
  void answer_freely(SequenceId base, std::span<const RetrievalQuestion> questions,
                     std::span<AnswerScore> scores);
  int64_t full_until(SequenceId base, const RetrievalQuestion& q) const;

  Model& model_;
  RetrievalOptions options_;
  int64_t context_;
  const Tokenizer* tokenizer_;
  std::unique_ptr<KvCache> cache_;
};

/// How one method answered questions of one task and length. Shares are 0 to 1.
struct RetrievalScore {
  std::string method;  // canonical text
  double history_bits = 0;
  std::string task;
  int64_t length = 0;
  int64_t questions = 0;
  double exact = 0;
  double substring = -1;  // -1: not measured
  int sink = 0, recent = 0;
  std::string prefill;
  uint64_t seed = 0;
  int64_t context = 0;          // that the model was trained for
  bool beyond_context = false;  // the set's true_length() is longer

  /// The share of all scores.
  void average(std::span<const AnswerScore> answers);
  /// The method, what it takes, and which haystacks the model was asked about.
  void describe(const CacheSpec& spec, const CachePlan& plan, const HaystackSet& set,
                const ModelConfig& config);
  /// "4096", with a star where that is past the context.
  std::string length_text() const;
  /// Adds the fields, named as above, to an object; substring is left out where it was not measured, context
  /// and beyond_context where the texts are within it.
  void add_to(nlohmann::ordered_json& object) const;
};

/// What the stars of a table mean, a line; "" where it has none.
std::string star_note(bool any_beyond, int64_t context);

}  // namespace kv2
