// SPDX-License-Identifier: Apache-2.0
#include "apps/random_pages.h"

#include <algorithm>
#include <random>
#include <vector>

#include "base/check.h"
#include "base/log.h"

namespace kv2::app {
namespace {

size_t values_of(const Model& model, int n_rows) {
  const KvShape shape = model.config().kv_shape();
  return static_cast<size_t>(n_rows) * shape.n_kv_heads * shape.head_dim;
}

}  // namespace

RandomPages::RandomPages(Model& model, int chunk_tokens) : model_(model), chunk_tokens_(chunk_tokens) {
  std::vector<float> rows(2 * values_of(model, chunk_tokens));
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.1f, 1.0f);
  for (float& x : rows) x = normal(random);
  Backend& backend = model.backend();
  rows_ = static_cast<float*>(backend.allocate(rows.size() * sizeof(float)));
  backend.upload(rows_, rows.data(), rows.size() * sizeof(float));
  backend.sync();
}

RandomPages::~RandomPages() {
  model_.backend().release(rows_);
}

void RandomPages::extend(KvCache& cache, SequenceId sequence, int64_t n_tokens) {
  Backend& backend = model_.backend();
  for (int64_t at; (at = cache.n_tokens(sequence)) < n_tokens;) {
    throw_if_interrupted();
    const int n = static_cast<int>(std::min<int64_t>(chunk_tokens_, n_tokens - at));
    KV2_CHECK(cache.reserve(sequence, n), "no pages");
    const Slice slice{.sequence = sequence, .first_row = 0, .n_rows = n};
    const CacheStep step = cache.begin({&slice, 1});
    for (int layer = 0; layer < model_.config().n_layers; layer++) {
      backend.append({.layer = layer,
                      .k = rows_,
                      .v = rows_ + values_of(model_, chunk_tokens_),
                      .kv = step.kv,
                      .sequences = step.sequences});
      if (!step.demotions.empty())
        backend.demote({.layer = layer,
                        .k = cache.coder_k(layer),
                        .v = cache.coder_v(layer),
                        .kv = step.kv,
                        .pages = step.demotions});
    }
    backend.sync();
    cache.commit({&slice, 1});
  }
}

}  // namespace kv2::app
