// SPDX-License-Identifier: Apache-2.0
#include "eval/divergence.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "base/log.h"
#include "base/threads.h"
#include "calibrate/sequence_walk.h"
#include "eval/compare_logits.h"
#include "eval/history.h"

namespace kv2 {
namespace {

/// What one row of one method gave.
struct RowScore {
  double nll = 0, kl = 0;
  bool same_top = false;
};

/// What a run of positions gave.
struct Bucket {
  int64_t n = 0, n_same_top = 0;
  double kl_sum = 0, kl_max = 0;
};
constexpr int64_t kFirstBucket = 512;  // tokens; every further one is twice as long
int bucket_of(int64_t position) {
  return std::bit_width(static_cast<uint64_t>(position / kFirstBucket));
}

/// One method on its way through the text. A method that keeps bf16 has no walk: it is the pass it is
/// compared with.
struct Runner {
  CacheSpec spec;
  std::unique_ptr<SequenceWalk> walk;
  CachePlan plan;
  double nll_sum = 0;
  int64_t n_nll = 0, n_same_top = 0;
  std::vector<float> kl;        // one per scored position, in their order
  std::vector<float> same_top;  // the same: 1 where the arg max is equal
  std::vector<Bucket> buckets;  // by bucket_of(position in its window)
};

/// A chunk's tokens and what of it is scored.
struct Chunk {
  std::span<const int32_t> tokens;
  int64_t first_position;               // in its window
  int32_t next_token;                   // after the chunk; -1: the window ends
  int64_t first_nll_row, first_kl_row;  // rows from here on count
};

/// A window and which of its positions count: all from these on.
struct Window {
  std::span<const int32_t> text;
  int64_t prompt = 0;  // read as one under PrefillPolicy::Exact
  int64_t first_nll = 0, first_kl = 0;
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

  void walk_window(const Window& w, Progress& progress) {
    bf16_.restart(w.prompt);
    for (Runner& r : runners_)
      if (r.walk) r.walk->restart(w.prompt);
    for (size_t begin = 0; begin < w.text.size();) {
      size_t n = std::min<size_t>(chunk_, w.text.size() - begin);
      if (static_cast<int64_t>(begin) < w.prompt) n = std::min<size_t>(n, w.prompt - begin);
      const size_t end = begin + n;
      const auto row_of_position = [&](int64_t position) {
        return std::clamp<int64_t>(position - static_cast<int64_t>(begin), 0, static_cast<int64_t>(n));
      };
      walk_chunk({.tokens = w.text.subspan(begin, n),
                  .first_position = static_cast<int64_t>(begin),
                  .next_token = end < w.text.size() ? w.text[end] : -1,
                  .first_nll_row = row_of_position(w.first_nll),
                  .first_kl_row = row_of_position(w.first_kl)},
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
      if (row >= chunk.first_nll_row && (row + 1 < n || chunk.next_token >= 0)) {
        runner.nll_sum += scores_[row].nll;
        runner.n_nll++;
      }
      if (row >= chunk.first_kl_row) add_kl(chunk.first_position + row, scores_[row], runner);
    }
  }

  static void add_kl(int64_t position, const RowScore& score, Runner& runner) {
    runner.kl.push_back(static_cast<float>(score.kl));
    runner.same_top.push_back(score.same_top ? 1.0f : 0.0f);
    runner.n_same_top += score.same_top;
    const size_t index = bucket_of(position);
    if (runner.buckets.size() <= index) runner.buckets.resize(index + 1);
    Bucket& b = runner.buckets[index];
    b.n++;
    b.n_same_top += score.same_top;
    b.kl_sum += score.kl;
    b.kl_max = std::max(b.kl_max, score.kl);
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

std::vector<DivergenceBucket> finish(const std::vector<Bucket>& buckets) {
  std::vector<DivergenceBucket> out;
  for (size_t i = 0; i < buckets.size(); i++) {
    const Bucket& b = buckets[i];
    if (b.n == 0) continue;
    out.push_back({.begin = i == 0 ? 0 : kFirstBucket << (i - 1),
                   .end = kFirstBucket << i,
                   .tokens = b.n,
                   .flips = b.n - b.n_same_top,
                   .kl_mean = b.kl_sum / static_cast<double>(b.n),
                   .kl_max = b.kl_max});
  }
  return out;
}

DivergenceResult finish(Runner& r, int64_t window) {
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
  out.kl_blocks = block_means(r.kl);
  out.kl_se = standard_error(out.kl_blocks, out.kl_tokens);
  out.top1_se = standard_error(block_means(r.same_top), out.kl_tokens);
  std::sort(r.kl.begin(), r.kl.end());
  out.kl_median = quantile(r.kl, 0.5);
  out.kl_p99 = quantile(r.kl, 0.99);
  out.kl_max = r.kl.back();
  out.flips = out.kl_tokens - r.n_same_top;
  out.buckets = finish(r.buckets);
  out.sink = r.spec.sink_tokens;
  out.recent = r.spec.recent_tokens;
  out.prefill = r.spec.prefill == PrefillPolicy::Exact ? "exact" : "windowed";
  return out;
}

void find_rivals(std::vector<DivergenceResult>& results) {
  constexpr double kEqualBits = 1e-6;
  for (DivergenceResult& r : results) {
    const DivergenceResult* best = nullptr;
    for (const DivergenceResult& other : results) {
      if (&other == &r || other.history_bits > r.history_bits + kEqualBits || r.history_bits >= 16) continue;
      if (best == nullptr || other.kl_mean < best->kl_mean) best = &other;
    }
    if (best == nullptr) continue;
    r.rival = best->method;
    r.over_rival = paired_difference(r.kl_blocks, best->kl_blocks, r.kl_tokens);
  }
}

/// First position at which every quantized method has a history; 0 when there is none of them.
int64_t first_common_position(const std::vector<CacheSpec>& specs) {
  int64_t first = 0;
  for (const CacheSpec& s : specs)
    if (s.method.quantized()) first = std::max(first, first_position_with_history(s));
  return first;
}

}  // namespace

std::vector<DivergenceResult> measure_divergence(Model& model, const std::vector<int32_t>& tokens,
                                                 const std::vector<CacheSpec>& specs,
                                                 const Calibration* calibration,
                                                 const DivergenceOptions& options) {
  if (options.window < 0 || options.max_tokens < 0 || options.chunk_tokens < 1 || options.stride < 0)
    throw_error(ErrorCode::BadArgument,
                "evaluation: window {}, stride {}, {} tokens, chunks of {}: none may be negative",
                options.window, options.stride, options.max_tokens, options.chunk_tokens);
  const int64_t context = model.config().context, available = static_cast<int64_t>(tokens.size());
  const int64_t total = options.max_tokens > 0 ? std::min(options.max_tokens, available) : available;
  if (options.window > context)
    throw_error(ErrorCode::BadArgument,
                "evaluation window of {} tokens, but the model's context is {}; --window 0 is all of it",
                options.window, context);
  const int64_t window = std::min(options.window > 0 ? options.window : context, total);
  const bool any_exact = std::any_of(specs.begin(), specs.end(), [](const CacheSpec& s) {
    return s.method.quantized() && s.prefill == PrefillPolicy::Exact;
  });
  const int64_t first_kl = first_common_position(specs);
  if (window < 2 || window <= first_kl)
    throw_error(
        ErrorCode::BadArgument,
        "the history of these methods begins at position {}: {} or more tokens are needed in a "
        "window, got {} (text {}, context {}); give more text, or keep less in bf16 (--sink, --recent)",
        first_kl, std::max<int64_t>(2, first_kl + 1), window, total, context);
  const int64_t stride = options.stride > 0 ? options.stride : window;
  if (stride > window)
    throw_error(ErrorCode::BadArgument,
                "evaluation: a stride of {} tokens leaves gaps between windows of {}; supported: 1 to {}",
                stride, window, window);
  const std::span<const int32_t> text(tokens.data(), static_cast<size_t>(total));
  require_in_vocabulary(text, model.config(), "evaluation");

  const int chunk = std::min<int>(options.chunk_tokens, model.max_rows());
  Comparison comparison(model, specs, calibration, window, chunk, options.n_threads);
  std::vector<Window> windows;
  int64_t n_walked = 0;
  for (int64_t begin = 0, scored = 0; begin + 1 < total && scored < total; begin += stride) {
    const int64_t n = std::min(window, total - begin), prompt = any_exact ? n / 2 : 0;
    windows.push_back(
        {.text = text.subspan(begin, n),
         .prompt = prompt,
         .first_nll = std::max<int64_t>(0, scored - 1 - begin),  // the row before a token predicts it
         .first_kl = std::max({first_kl, prompt, scored - begin})});
    scored = begin + n;
    n_walked += n;
  }
  const auto walks =
      1 + std::count_if(specs.begin(), specs.end(), [](const auto& s) { return s.method.quantized(); });
  Progress progress("eval", n_walked * walks);
  for (const Window& w : windows) comparison.walk_window(w, progress);
  std::vector<DivergenceResult> out;
  for (Runner& r : comparison.runners()) {
    out.push_back(finish(r, window));
    out.back().windows = static_cast<int64_t>(windows.size());
    out.back().stride = stride;
  }
  find_rivals(out);
  return out;
}

}  // namespace kv2
