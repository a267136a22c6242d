// SPDX-License-Identifier: Apache-2.0
// Haystack: a long text with needles as token ids, and questions behind it. HaystackWriter makes them under a
// seed: the same task, length, index and seed give the same ids, whatever else is made.
//
//   [bos] preamble | end of a sentence | needle, sentences … needle, sentences … || question || answer
//   '-------------------------- ids, exactly length - room ------------------------''------ room -----'
//
// Room is the longest question with its answer (or with answer_tokens, if that is longer), so that a haystack
// of a model's whole context can be asked. Sentences are tokenized one by one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/needle_text.h"
#include "eval/retrieval_task.h"
#include "eval/word_list.h"
#include "text/tokenizer.h"

namespace kv2 {

/// One question behind a haystack.
struct RetrievalQuestion {
  std::vector<int32_t> question, answer;  // token ids, neither empty; the answer ends with its period
  std::vector<std::string> values;        // what the answer says; empty: no substring score
  double depth = 0;                       // where its first needle begins, as a share of the haystack
  bool operator==(const RetrievalQuestion&) const = default;
};

struct Haystack {
  std::vector<int32_t> ids;  // not empty
  std::vector<RetrievalQuestion> questions;
  int64_t n_needles = 0;
  bool operator==(const Haystack&) const = default;
};

/// Haystacks of one task and length: labels alone where they come from a file.
struct HaystackSet {
  std::string task;
  int64_t length = 0;
  uint64_t seed = 0;  // 0 where they come from a file
  std::vector<Haystack> haystacks;
  bool made = false;  // to their length, in which a free answer has room
  bool operator==(const HaystackSet&) const = default;

  int64_t n_questions() const;
  /// Tokens of all haystacks, without their questions.
  int64_t n_tokens() const;
  /// Of one haystack, 1 at least.
  int most_questions() const;
  /// Everything that a model reads of this set, one after the other: what a text's hash is taken of.
  std::vector<int32_t> all_ids() const;
  /// Tokens of the longest haystack with its longest question and answer (or answer_tokens, if longer).
  int64_t context(int64_t answer_tokens) const;
  /// Tokens that it was made for, or what the texts of a file take.
  int64_t true_length() const { return made ? length : context(0); }
};

/// What a haystack shall be.
struct HaystackRequest {
  RetrievalTask task;
  int64_t length = 4096;        // tokens, question and answer included
  int64_t answer_tokens = 128;  // room for a free answer; RULER's is 128
  int max_questions = 16;       // of one haystack
  /// Where the needles lie, 0 to 1, one per needle; empty: at random. Not with haystack=needles.
  std::vector<double> depths;
};

class HaystackWriter {
 public:
  /// essay: the sentences of essay haystacks; empty: made up from words. The tokenizer must outlive this.
  HaystackWriter(const Tokenizer& tokenizer, WordList words, std::vector<std::string> essay);

  /// Errors: BadArgument when the needles and the question do not fit in the length (says what would).
  Haystack make(const HaystackRequest& request, uint64_t seed, int64_t index) const;
  /// Text of the tasks' own kind for calibration: `n_sequences` times exactly `length` tokens, haystacks of
  /// these tasks in turn, 1,000 to `length` tokens long, each with questions answered for a third of its
  /// length.
  std::vector<int32_t> training_text(const std::vector<RetrievalTask>& tasks, int64_t length, int n_sequences,
                                     uint64_t seed) const;
  /// Ids of a piece of a text that begins with a space or a line break.
  std::vector<int32_t> piece(const std::string& text) const;

 private:
  class Draft;
  std::string sentence(HaystackKind kind, Dice& dice) const;

  const Tokenizer& tokenizer_;
  WordList words_;
  std::vector<std::string> essay_;
};

}  // namespace kv2
