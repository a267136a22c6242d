// SPDX-License-Identifier: Apache-2.0
#include "eval/divergence.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/log.h"
#include "base/threads.h"
#include "calibrate/sequence_walk.h"
#include "eval/compare_logits.h"

namespace kv2 {
namespace {

/// What one row of one method gave.
struct RowScore {
  double nll = 0, kl = 0;
  bool same_top = false;
};

/// One method on its way through the text. A method that keeps bf16 has no walk: it is the pass it is
/// compared with.
struct Runner {
  CacheSpec spec;
  std::unique_ptr<SequenceWalk> walk;
  CachePlan plan;
  double nll_sum = 0;
  int64_t n_nll = 0, n_same_top = 0;
  std::vector<float> kl;  // one per scored position
};

/// A chunk's tokens and what of it is scored.
struct Chunk {
  std::span<const int32_t> tokens;
  int32_t next_token;    // after the chunk; -1: the window ends
  int64_t first_kl_row;  // rows from here on count for KL
};

class Comparison {
 public:
  Comparison(Model& model, const std::vector<CacheSpec>& specs, const Calibration* calibration,
             int64_t window, int chunk, int n_threads)
      : chunk_(chunk),
        vocab_(model.config().vocab),
        team_(n_threads),
        bf16_(model, CacheSpec::parse("bf16"), nullptr, window, chunk) {
    for (const CacheSpec& spec : specs) {
      Runner r;
      r.spec = spec;
      if (spec.method.quantized())
        r.walk = std::make_unique<SequenceWalk>(model, spec, calibration, window, chunk);
      r.plan = (r.walk ? *r.walk : bf16_).cache().plan();
      runners_.push_back(std::move(r));
    }
    bf16_logits_.resize(static_cast<size_t>(chunk) * vocab_);
    logits_.resize(static_cast<size_t>(chunk) * vocab_);
  }

  void walk_window(std::span<const int32_t> text, int64_t first_kl, int64_t prompt, Progress& progress) {
    bf16_.restart(prompt);
    for (Runner& r : runners_)
      if (r.walk) r.walk->restart(prompt);
    for (size_t begin = 0; begin < text.size();) {
      size_t n = std::min<size_t>(chunk_, text.size() - begin);
      if (static_cast<int64_t>(begin) < prompt) n = std::min<size_t>(n, prompt - begin);
      const size_t end = begin + n;
      walk_chunk({text.subspan(begin, n), end < text.size() ? text[end] : -1,
                  std::clamp<int64_t>(first_kl - static_cast<int64_t>(begin), 0, static_cast<int64_t>(n))},
                 progress);
      begin = end;
    }
  }

  std::vector<Runner>& runners() { return runners_; }

 private:
  std::span<const float> row_of(const std::vector<float>& logits, int64_t row) const {
    return std::span<const float>(logits).subspan(static_cast<size_t>(row) * vocab_, vocab_);
  }

  void walk_chunk(const Chunk& chunk, Progress& progress) {
    const int64_t n = static_cast<int64_t>(chunk.tokens.size());
    throw_if_interrupted();
    bf16_.advance(chunk.tokens, std::span<float>(bf16_logits_).first(n * vocab_), nullptr);
    bf16_rows_.resize(n);
    team_.run(n, [&](int64_t row, int) { bf16_rows_[row] = summarize(row_of(bf16_logits_, row)); });
    progress.advance(n);
    for (Runner& r : runners_) {
      throw_if_interrupted();
      if (r.walk) r.walk->advance(chunk.tokens, std::span<float>(logits_).first(n * vocab_), nullptr);
      score(chunk, r.walk ? logits_ : bf16_logits_, r);
      if (r.walk) progress.advance(n);
    }
  }

  void score(const Chunk& chunk, const std::vector<float>& logits, Runner& runner) {
    const int64_t n = static_cast<int64_t>(chunk.tokens.size());
    scores_.assign(n, {});
    team_.run(n, [&](int64_t row, int) {
      const std::span<const float> own = row_of(logits, row), other = row_of(bf16_logits_, row);
      const LogitRow summary = runner.walk ? summarize(own) : bf16_rows_[row];
      RowScore& s = scores_[row];
      const int32_t target = row + 1 < n ? chunk.tokens[row + 1] : chunk.next_token;
      if (target >= 0) s.nll = negative_log_likelihood(own, summary, target);
      s.same_top = summary.arg_max == bf16_rows_[row].arg_max;
      if (runner.walk && row >= chunk.first_kl_row)
        s.kl = kl_divergence(other, bf16_rows_[row], own, summary);
    });
    for (int64_t row = 0; row < n; row++) {  // in order: the sums do not depend on the threads
      if (row + 1 < n || chunk.next_token >= 0) {
        runner.nll_sum += scores_[row].nll;
        runner.n_nll++;
      }
      if (row < chunk.first_kl_row) continue;
      runner.kl.push_back(static_cast<float>(scores_[row].kl));
      runner.n_same_top += scores_[row].same_top;
    }
  }

  int chunk_;
  size_t vocab_;
  ThreadTeam team_;
  SequenceWalk bf16_;
  std::vector<Runner> runners_;
  std::vector<float> bf16_logits_, logits_;  // [chunk, vocab]
  std::vector<LogitRow> bf16_rows_;
  std::vector<RowScore> scores_;
};

DivergenceResult finish(Runner& r, int64_t window, int64_t n_windows) {
  DivergenceResult out;
  out.method = r.spec.method_text();
  out.history_bits = r.plan.layout.history_bits();
  out.all_in_bits = r.plan.all_in_bits(window);
  out.kv_bytes = r.plan.bytes_for(window);
  out.tokens = r.n_nll;
  out.kl_tokens = static_cast<int64_t>(r.kl.size());
  out.ppl = std::exp(r.nll_sum / static_cast<double>(r.n_nll));
  out.top1 = static_cast<double>(r.n_same_top) / static_cast<double>(r.kl.size());
  double sum = 0;
  for (const float x : r.kl) sum += x;
  out.kl_mean = sum / static_cast<double>(r.kl.size());
  std::sort(r.kl.begin(), r.kl.end());
  out.kl_median = quantile(r.kl, 0.5);
  out.kl_p99 = quantile(r.kl, 0.99);
  out.kl_max = r.kl.back();
  out.windows = n_windows;
  out.sink = r.spec.sink_tokens;
  out.recent = r.spec.recent_tokens;
  out.prefill = r.spec.prefill == PrefillPolicy::Exact ? "exact" : "windowed";
  return out;
}

/// First position at which every quantized method has a history; 0 when there is none of them.
int64_t first_common_position(const std::vector<CacheSpec>& specs) {
  int64_t first = 0;
  for (const CacheSpec& s : specs)
    if (s.method.quantized())
      first =
          std::max(first, Visibility{s.sink_pages(), s.recent_pages(), true}.first_position_with_history());
  return first;
}

}  // namespace

std::vector<DivergenceResult> measure_divergence(Model& model, const std::vector<int32_t>& tokens,
                                                 const std::vector<CacheSpec>& specs,
                                                 const Calibration* calibration,
                                                 const DivergenceOptions& options) {
  if (options.window < 0 || options.max_tokens < 0 || options.chunk_tokens < 1)
    throw_error(ErrorCode::BadArgument,
                "evaluation: window {}, {} tokens, chunks of {}: none may be negative", options.window,
                options.max_tokens, options.chunk_tokens);
  const int64_t context = model.config().context, available = static_cast<int64_t>(tokens.size());
  const int64_t total = options.max_tokens > 0 ? std::min(options.max_tokens, available) : available;
  if (options.window > context)
    throw_error(ErrorCode::BadArgument, "evaluation window of {} tokens, but the model's context is {}",
                options.window, context);
  const int64_t window = std::min(options.window > 0 ? options.window : context, total);
  const bool any_exact = std::any_of(specs.begin(), specs.end(), [](const CacheSpec& s) {
    return s.method.quantized() && s.prefill == PrefillPolicy::Exact;
  });
  const int64_t first_kl = first_common_position(specs);
  if (window < 2 || window <= first_kl)
    throw_error(ErrorCode::BadArgument,
                "the history of these methods begins at position {}: {} or more tokens are needed in a "
                "window, got {} "
                "(text {}, context {})",
                first_kl, std::max<int64_t>(2, first_kl + 1), window, total, context);
  const std::span<const int32_t> text(tokens.data(), static_cast<size_t>(total));
  require_in_vocabulary(text, model.config(), "evaluation");

  const int chunk = std::min<int>(options.chunk_tokens, model.max_rows());
  Comparison comparison(model, specs, calibration, window, chunk, options.n_threads);
  const auto walks =
      1 + std::count_if(specs.begin(), specs.end(), [](const auto& s) { return s.method.quantized(); });
  Progress progress("eval", total * walks);
  int64_t n_windows = 0;
  for (int64_t begin = 0; begin + 1 < total; begin += window, n_windows++) {
    const int64_t n = std::min(window, total - begin), prompt = any_exact ? n / 2 : 0;
    comparison.walk_window(text.subspan(begin, n), std::max(first_kl, prompt), prompt, progress);
  }
  std::vector<DivergenceResult> out;
  for (Runner& r : comparison.runners()) out.push_back(finish(r, window, n_windows));
  return out;
}

}  // namespace kv2
