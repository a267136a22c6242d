// SPDX-License-Identifier: Apache-2.0
#include "eval/needle.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "calibrate/sequence_walk.h"

namespace kv2 {
namespace {

constexpr int kChunk = 512;

/// Feeds question and answer to a fork of the prefix and compares the arg max of every row that predicts the
/// answer.
bool answers(Model& model, KvCache& cache, SequenceId sequence, int64_t prefix_tokens,
             const NeedleQuestion& q, int chunk) {
  std::vector<int32_t> text(q.question);
  text.insert(text.end(), q.answer.begin(),
              q.answer.end() - 1);  // nothing is asked behind the last answer token
  const int64_t n = static_cast<int64_t>(text.size());
  const int64_t first_scored = static_cast<int64_t>(q.question.size()) - 1;
  const bool exact = cache.spec().prefill == PrefillPolicy::Exact;
  const int64_t full_until = exact ? prefix_tokens + first_scored + 1 : 0;
  const size_t vocab = model.config().vocab;
  std::vector<float> logits;
  for (int64_t begin = 0; begin < n; begin += chunk) {
    const auto piece = std::span(text).subspan(begin, std::min<int64_t>(chunk, n - begin));
    const int first_row = static_cast<int>(std::clamp<int64_t>(first_scored - begin, 0, piece.size()));
    logits.resize((piece.size() - first_row) * vocab);
    feed(model, cache,
         Feed{.sequence = sequence,
              .tokens = piece,
              .full_until = full_until,
              .first_logit_row = first_row,
              .logits = logits});
    for (size_t row = first_row; row < piece.size(); row++) {
      const auto values = std::span(logits).subspan((row - first_row) * vocab, vocab);
      const auto best = std::max_element(values.begin(), values.end()) - values.begin();
      if (best != q.answer[begin + static_cast<int64_t>(row) - first_scored]) return false;
    }
  }
  return true;
}

}  // namespace

std::vector<uint8_t> needle_exact(Model& model, const CacheSpec& spec, const Calibration* calibration,
                                  const std::vector<int32_t>& prefix,
                                  const std::vector<NeedleQuestion>& questions) {
  int64_t longest = 0;
  for (const NeedleQuestion& q : questions) {
    if (q.question.empty() || q.answer.empty())
      throw_error(ErrorCode::BadArgument,
                  "needle: question {} has {} question tokens and {} answer tokens, both need one",
                  &q - questions.data(), q.question.size(), q.answer.size());
    std::vector<int32_t> all(prefix);
    all.insert(all.end(), q.question.begin(), q.question.end());
    all.insert(all.end(), q.answer.begin(), q.answer.end());
    require_tokens(all, model.config(), "needle");
    longest = std::max(longest, static_cast<int64_t>(q.question.size() + q.answer.size()));
  }
  const int64_t n = static_cast<int64_t>(prefix.size());
  const int chunk = std::min(kChunk, model.max_rows());
  const CacheCapacity capacity{.context_tokens = n + longest, .n_sequences = 2, .chunk_tokens = chunk};
  const std::unique_ptr<KvCache> cache = make_cache(model, spec, calibration, capacity);
  const std::optional<SequenceId> base = cache->open();
  KV2_CHECK(base.has_value());
  const int64_t full_until =
      spec.prefill == PrefillPolicy::Exact ? n : 0;  // each fork's prompt goes on from here
  Progress progress("needle", n);
  for (int64_t begin = 0; begin < n; begin += chunk) {
    throw_if_interrupted();
    const auto piece = std::span(prefix).subspan(begin, std::min<int64_t>(chunk, n - begin));
    feed(model, *cache, Feed{.sequence = *base, .tokens = piece, .full_until = full_until});
    progress.advance(static_cast<int64_t>(piece.size()));
  }
  std::vector<uint8_t> out;
  for (const NeedleQuestion& q : questions) {
    throw_if_interrupted();
    const std::optional<SequenceId> fork = cache->fork(*base);
    if (!fork)
      throw_error(ErrorCode::OutOfMemory, "needle: the cache has no room for a fork of {} tokens", n);
    out.push_back(answers(model, *cache, *fork, n, q, chunk));
    cache->close(*fork);
  }
  return out;
}

}  // namespace kv2
