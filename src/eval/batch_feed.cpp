// SPDX-License-Identifier: Apache-2.0
#include "eval/batch_feed.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "base/memory.h"
#include "ops/device_extras.h"

namespace kv2 {
namespace {

/// Rows of one forward that belong to one part.
struct Run {
  size_t part, from, n;
};

constexpr size_t kLogitBytes = size_t{64} << 20;  // of one forward

}  // namespace

void feed_batch(Model& model, KvCache& cache, std::span<const BatchPart> parts, const RowLogits& on_row) {
  const size_t vocab = model.config().vocab;
  const size_t most_logits = std::max<size_t>(1, kLogitBytes / sizeof(float) / vocab);
  std::vector<float> logits;
  size_t part = 0, from = 0;
  while (part < parts.size()) {
    throw_if_interrupted();
    Batch batch;
    std::vector<Run> runs;
    while (part < parts.size()) {
      const BatchPart& p = parts[part];
      size_t n =
          std::min({p.tokens.size() - from, static_cast<size_t>(model.max_rows()) - batch.tokens.size(),
                    static_cast<size_t>(cache.plan().capacity.chunk_tokens)});
      const size_t silent = p.first_logit_row > from ? p.first_logit_row - from : 0;
      n = std::min(n, silent + most_logits - batch.logit_rows.size());
      if (n == 0) break;
      if (!cache.reserve(p.sequence, static_cast<int64_t>(n)))
        throw_error(ErrorCode::OutOfMemory, "the cache has no room for {} more tokens after {}", n,
                    cache.n_tokens(p.sequence));
      const int first_row = static_cast<int>(batch.tokens.size());
      batch.tokens.insert(batch.tokens.end(), p.tokens.begin() + from, p.tokens.begin() + from + n);
      batch.slices.push_back({p.sequence, first_row, static_cast<int>(n), p.full_until});
      for (size_t row = silent; row < n; row++)
        batch.logit_rows.push_back(first_row + static_cast<int32_t>(row));
      runs.push_back({part, from, n});
      from += n;
      if (from < p.tokens.size()) break;  // a sequence has one run in a forward
      part++;
      from = 0;
    }
    KV2_CHECK(!runs.empty(), "part {} of {} is empty", part, parts.size());
    logits.resize(batch.logit_rows.size() * vocab);
    model.forward(batch, cache, logits, nullptr);
    size_t at = 0;
    for (const Run& run : runs)
      for (size_t row = std::max(run.from, parts[run.part].first_logit_row); row < run.from + run.n; row++)
        on_row(run.part, row, std::span<const float>(logits).subspan(at++ * vocab, vocab));
  }
}

CacheCapacity capacity_that_fits(Model& model, const CacheSpec& spec, CacheCapacity wanted, int least) {
  const KvShape shape = model.config().kv_shape();
  spec.validate(shape.head_dim);
  const size_t room = free_memory(model.backend()) / 20 * 19;
  const auto bytes = [&] { return plan_cache(spec, shape, wanted).total_bytes(); };
  wanted.n_sequences = std::max(wanted.n_sequences, least);
  while (bytes() > room) {
    if (wanted.n_sequences == least)
      throw_error(
          ErrorCode::OutOfMemory,
          "{} sequences of {} tokens in {} need {} of KV cache and {} are free; {} tokens each would fit",
          least, wanted.context_tokens, spec.method_text(), format_bytes(bytes()), format_bytes(room),
          context_that_fits(spec, shape, wanted, room));
    wanted.n_sequences = std::max(least, wanted.n_sequences / 2);
  }
  return wanted;
}

}  // namespace kv2
