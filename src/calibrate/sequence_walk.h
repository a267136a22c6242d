// SPDX-License-Identifier: Apache-2.0
// SequenceWalk: one sequence at a time through a model under one CacheSpec, in chunks: what calibration and
// the evaluations do. It owns a cache that holds one sequence of `context` tokens and nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "cache/kv_cache.h"
#include "kv2/cache.h"
#include "kv2/calibrate.h"
#include "model/model.h"

namespace kv2 {

/// A cache of `spec` on `model` with its transforms and clips; calibration may be nullptr where none is
/// needed.
std::unique_ptr<KvCache> make_cache(Model& model, const CacheSpec& spec, const Calibration* calibration,
                                    const CacheCapacity& capacity);

/// Throws BadArgument, beginning with `what`, naming the first token that is no token of the model.
void require_in_vocabulary(std::span<const int32_t> tokens, const ModelConfig& config, const char* what);
/// Throws BadArgument, beginning with `what`, unless there is a token, all fit in the context and are in the
/// vocabulary.
void require_tokens(std::span<const int32_t> tokens, const ModelConfig& config, const char* what);

/// One forward of consecutive tokens of one sequence. Reserves the pages; throws OutOfMemory when the cache
/// is full.
struct Feed {
  SequenceId sequence;
  std::span<const int32_t> tokens;
  int64_t full_until = 0;   // of the sequence's prompt under PrefillPolicy::Exact
  int first_logit_row = 0;  // logits of this and all later rows are wanted, as far as `logits` is not empty
  std::span<float> logits;  // [tokens.size() - first_logit_row, vocab], or empty: none
  Observer* observer = nullptr;
};
void feed(Model& model, KvCache& cache, const Feed& f);

class SequenceWalk {
 public:
  SequenceWalk(Model& model, const CacheSpec& spec, const Calibration* calibration, int64_t context,
               int chunk_tokens);

  /// Forgets the sequence and begins another. prompt_tokens matter to PrefillPolicy::Exact only.
  void restart(int64_t prompt_tokens);
  /// At most chunk_tokens tokens. logits: [tokens.size(), vocab], or empty: none wanted.
  void advance(std::span<const int32_t> tokens, std::span<float> logits, Observer* observer);

  KvCache& cache() { return *cache_; }

 private:
  Model& model_;
  std::unique_ptr<KvCache> cache_;
  std::optional<SequenceId> sequence_;
  int64_t full_until_ = 0;
};

}  // namespace kv2
