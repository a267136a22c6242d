// SPDX-License-Identifier: Apache-2.0
#include "eval/logits.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/log.h"
#include "calibrate/sequence_walk.h"
#include "eval/npy.h"

namespace kv2 {
namespace {

/// An infinite logit is an answer (a token that never comes), a NaN is none.
void require_numbers(std::span<const float> logits, int64_t first_token, int vocab) {
  for (size_t i = 0; i < logits.size(); i++)
    if (std::isnan(logits[i]))
      throw_error(ErrorCode::BadFile,
                  "logit {} after token {} is NaN: weights of the model overflow or are damaged",
                  i % static_cast<size_t>(vocab), first_token + static_cast<int64_t>(i) / vocab);
}

}  // namespace

void write_logits(Model& model, const CacheSpec& spec, const Calibration* calibration,
                  const std::vector<int32_t>& tokens, const std::string& path) {
  const ModelConfig& config = model.config();
  require_tokens(tokens, config, "logits");
  const int64_t n = static_cast<int64_t>(tokens.size());
  const int chunk =
      static_cast<int>(std::min<int64_t>({n, model.max_rows(), 256}));  // 50 MB at a vocabulary of 49k
  SequenceWalk walk(model, spec, calibration, n, chunk);
  walk.restart(n);
  Progress progress("logits", n);
  std::vector<float> logits(static_cast<size_t>(chunk) * config.vocab);
  write_npy_rows(path, n, config.vocab, [&](const AppendRows& append) {
    for (int64_t begin = 0; begin < n; begin += chunk) {
      throw_if_interrupted();
      const auto piece = std::span(tokens).subspan(begin, std::min<int64_t>(chunk, n - begin));
      const auto rows = std::span(logits).first(piece.size() * static_cast<size_t>(config.vocab));
      walk.advance(piece, rows, nullptr);
      require_numbers(rows, begin, config.vocab);
      append(rows);
      progress.advance(static_cast<int64_t>(piece.size()));
    }
  });
}

}  // namespace kv2
