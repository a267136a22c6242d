// SPDX-License-Identifier: Apache-2.0
// measure_generation(): long free-running greedy text of every method from the same prompts. Errors of a
// cache that a teacher-forced judge forgives at every token add up here: where the text leaves bf16's, and
// whether it ends in a loop more often than bf16's does.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kv2/cache.h"
#include "kv2/calibrate.h"
#include "model/model.h"

namespace kv2 {

struct GenerationOptions {
  int64_t max_tokens = 2048;  // of each text, without its prompt
  int batch = 16;             // texts decoded together, as far as memory allows
  int chunk_tokens = 512;     // prompt tokens of one forward
  bool ignore_eos = false;    // go on behind the model's end of text
};

/// One method over all prompts. Texts are compared without the token that ended them.
struct GenerationResult {
  std::string method;  // canonical text
  double history_bits = 0;
  int64_t prompts = 0, tokens = 0;  // generated, all texts together
  int64_t ended = 0;                // texts that came to an end of text
  /// First token that differs from bf16's, mean and median over the texts; a text that is equal to bf16's
  /// counts with its length (`same` says how many are).
  double left_mean = 0, left_median = 0;
  int64_t same = 0;
  double agree = 0;                       // share of positions of both texts with equal tokens
  double distinct_2 = 0, distinct_4 = 0;  // different n-grams ÷ n-grams, mean over the texts (eval/loops.h)
  double longest_loop = 0;                // tokens, mean over the texts
  int64_t collapsed = 0;                  // texts that end in a loop of 256 tokens or more (eval/loops.h)
  int64_t only_here = 0,
          only_bf16 = 0;  // collapsed under this method and not under bf16, and the other way round
  int64_t stuck = 0, stuck_only_here = 0, stuck_only_bf16 = 0;  // the same of stuck texts (eval/loops.h)
  /// Exact sign test of only_here against only_bf16 (eval/sign_test.h): how often chance alone, as many texts
  /// falling either way, would split them at least as unevenly.
  double collapsed_p = 1, stuck_p = 1;
  int sink = 0, recent = 0;
  std::string prefill;
};

/// A method's texts, in order of the prompts, with the token that ended them.
using GeneratedTexts = std::vector<std::vector<int32_t>>;

struct GenerationRun {
  GenerationResult result;
  GeneratedTexts texts;
};

/// bf16 runs first, whether it is asked for or not: everything is compared with it. on_run gets each asked
/// method as soon as it is done. Errors: BadArgument (no prompts; an empty one; a prompt whose text would
/// pass the model's context; a token out of the vocabulary; texts too short to read a code of a method),
/// OutOfMemory with what would fit.
std::vector<GenerationRun> measure_generation(Model& model, const std::vector<CacheSpec>& specs,
                                              const Calibration* calibration,
                                              const std::vector<std::vector<int32_t>>& prompts,
                                              const GenerationOptions& options,
                                              const std::function<void(const GenerationRun&)>& on_run);

/// Fills what compares `texts` with bf16's. eos: tokens that are no part of a text at its end.
void compare_texts(const GeneratedTexts& texts, const GeneratedTexts& bf16, const std::vector<int32_t>& eos,
                   GenerationResult& out);

/// {"judge": "generate", the fields named as above}.
std::string to_json(const GenerationResult& r);
std::string to_table(const std::vector<GenerationResult>& results);

}  // namespace kv2
