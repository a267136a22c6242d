// SPDX-License-Identifier: Apache-2.0
// Sequences of any length without a prompt: random rows of K and V go into a cache's pages as a forward's
// would (append, demote, per layer), and nothing else of the forward happens. For speed alone; text means
// nothing.
#pragma once

#include "cache/kv_cache.h"
#include "model/model.h"

namespace kv2::app {

class RandomPages {
 public:
  /// Rows of one step; the same ones every time.
  RandomPages(Model& model, int chunk_tokens);
  ~RandomPages();
  RandomPages(const RandomPages&) = delete;
  RandomPages& operator=(const RandomPages&) = delete;

  /// Until the sequence has `n_tokens`.
  void extend(KvCache& cache, SequenceId sequence, int64_t n_tokens);

 private:
  Model& model_;
  int chunk_tokens_;
  float* rows_ = nullptr;  // on the device, K then V
};

}  // namespace kv2::app
