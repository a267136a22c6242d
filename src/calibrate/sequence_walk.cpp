// SPDX-License-Identifier: Apache-2.0
#include "calibrate/sequence_walk.h"

#include "base/check.h"
#include "engine/transforms.h"

namespace kv2 {

std::unique_ptr<KvCache> make_cache(Model& model, const CacheSpec& spec, const Calibration* calibration,
                                    const CacheCapacity& capacity) {
  const KvShape shape = model.config().kv_shape();
  spec.validate(shape.head_dim);
  if (calibration && spec.method.needs_calibration()) calibration->require_model(model.fingerprint());
  FittedMethod fitted = fit_method(spec, shape, calibration);
  return std::make_unique<KvCache>(model.backend(), spec, shape, capacity, std::move(fitted));
}

void require_in_vocabulary(std::span<const int32_t> tokens, const ModelConfig& config, const char* what) {
  for (size_t i = 0; i < tokens.size(); i++)
    if (tokens[i] < 0 || tokens[i] >= config.vocab)
      throw_error(ErrorCode::BadArgument, "{}: token {} at index {} is not in the vocabulary of {}", what,
                  tokens[i], i, config.vocab);
}

void require_tokens(std::span<const int32_t> tokens, const ModelConfig& config, const char* what) {
  if (tokens.empty()) throw_error(ErrorCode::BadArgument, "{}: no tokens", what);
  if (static_cast<int64_t>(tokens.size()) > config.context)
    throw_error(ErrorCode::BadArgument,
                "{}: {} tokens, but the model's context is {}; give that many at most (a judge that "
                "reads a text: --max-tokens {})",
                what, tokens.size(), config.context, config.context);
  require_in_vocabulary(tokens, config, what);
}

void feed(Model& model, KvCache& cache, const Feed& f) {
  const int n = static_cast<int>(f.tokens.size());
  KV2_CHECK(n > 0 && n <= model.max_rows(), "{} rows of {}", n, model.max_rows());
  if (!cache.reserve(f.sequence, n))
    throw_error(ErrorCode::OutOfMemory, "the cache has no room for {} more tokens after {}", n,
                cache.n_tokens(f.sequence));
  Batch batch;
  batch.tokens.assign(f.tokens.begin(), f.tokens.end());
  batch.slices = {Slice{f.sequence, 0, n, f.full_until}};
  if (!f.logits.empty())
    for (int row = f.first_logit_row; row < n; row++) batch.logit_rows.push_back(row);
  model.forward(batch, cache, f.logits, f.observer);
}

SequenceWalk::SequenceWalk(Model& model, const CacheSpec& spec, const Calibration* calibration,
                           int64_t context, int chunk_tokens)
    : model_(model) {
  const CacheCapacity capacity{.context_tokens = context, .n_sequences = 1, .chunk_tokens = chunk_tokens};
  cache_ = make_cache(model, spec, calibration, capacity);
}

void SequenceWalk::restart(int64_t prompt_tokens) {
  if (sequence_) cache_->close(*sequence_);
  sequence_ = cache_->open();
  KV2_CHECK(sequence_.has_value());
  full_until_ = cache_->spec().prefill == PrefillPolicy::Exact ? prompt_tokens : 0;
}

void SequenceWalk::advance(std::span<const int32_t> tokens, std::span<float> logits, Observer* observer) {
  KV2_CHECK(sequence_.has_value());
  feed(model_, *cache_,
       Feed{.sequence = *sequence_,
            .tokens = tokens,
            .full_until = full_until_,
            .logits = logits,
            .observer = observer});
}

}  // namespace kv2
