// SPDX-License-Identifier: Apache-2.0
// Decode, prefill and batches of a real model at several depths. One sequence is fed as deep as asked, and
// every measurement works on forks of it, which share its pages: caches may then hold what memory would have
// to give. With --random-cache every sequence of a batch has random pages of its own. Before a depth is
// timed, the same tokens go through one prefill and through single steps, and the divergence of their logits
// is printed (0: the same bits).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "apps/bench.h"
#include "apps/random_pages.h"
#include "apps/timed_backend.h"
#include "base/check.h"
#include "base/log.h"
#include "base/memory.h"
#include "engine/transforms.h"
#include "ops/device_extras.h"

namespace kv2::app {
namespace {

std::vector<int64_t> depths_of(const BenchOptions& o) {
  std::vector<int64_t> depths = bench_shapes(o).front().depths;
  std::sort(depths.begin(), depths.end());
  return depths;
}

int most_sequences(const BenchOptions& o) {
  const std::vector<int> batches = o.model_batches();
  return *std::max_element(batches.begin(), batches.end());
}

class ModelBench {
 public:
  ModelBench(const BenchOptions& o, Model& model, const CacheSpec& spec, const Calibration* calibration)
      : o_(o), depths_(depths_of(o)), model_(model), spec_(spec), compared_(std::min(8, o.prompt)) {
    const int64_t deepest = depths_.back();
    const int n_sequences = 2 + (o.wants("batch") || o.wants("profile") ? most_sequences(o) : 0);
    const int64_t room = std::max({o.prompt, (o.repeats + 1) * o.steps, kPageTokens}) + kPageTokens;
    context_ = std::min<int64_t>(model.config().context, deepest + room);
    FittedMethod fitted = fit_method(spec, model.config().kv_shape(), calibration);
    if (o.absorb) model.absorb_values(fitted.transforms);  // methods without a basis get the file's W_o back
    say_absorbed(model, spec);
    cache_ = std::make_unique<KvCache>(
        model.backend(), spec, model.config().kv_shape(),
        CacheCapacity{.context_tokens = context_, .n_sequences = n_sequences, .chunk_tokens = o.prompt},
        std::move(fitted));
    base_ = open();
    if (o.random_cache) pages_ = std::make_unique<RandomPages>(model, o.prompt);
  }

  void run(BenchReport& report) {
    for (const int64_t depth : depths_) {
      grow(depth);
      const double divergence = depth + compared_ + 1 <= context_ && compared_ > 0 ? compare() : -1;
      if (o_.wants("prefill")) report.add(prefill(depth));
      if (o_.wants("decode")) report.add(decode(depth, 1, "decode", divergence));
      if (o_.wants("batch"))
        for (const int n : o_.model_batches()) report.add(decode(depth, n, "batch", -1));
    }
    // of a device with memory of its own neither weights nor pages are this process's
    if (o_.wants("decode") && !dynamic_cast<const OwnMemory*>(&model_.backend())) {
      const int64_t deepest = cache_->n_tokens(base_);
      report.add_memory({.name = fmt::format("{} depth {}", spec_.method_text(), deepest),
                         .resident = resident_memory(),
                         .weights = model_.weight_bytes(),
                         .kv = planned_for(deepest),
                         .kv_tokens = cache_->plan().bytes_for(deepest)});
    }
  }

  /// Where the time of a step goes, operation by operation, over 64 steps: one of them demotes a page.
  void profile(TimedBackend& timed, BenchReport& report) {
    const int64_t depth = depths_.back();
    const int n = o_.model_batches().back();
    grow(depth);
    std::vector<SequenceId> sequences;
    for (int i = 0; i < n; i++) sequences.push_back(fork());
    step(sequences, 1, Logits::Best);
    std::vector<double> steps;
    for (int i = 0; i < kPageTokens; i++) {
      throw_if_interrupted();
      timed.start_step();
      const auto start = std::chrono::steady_clock::now();
      step(sequences, 1, Logits::Best);
      steps.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    for (const SequenceId s : sequences) cache_->close(s);
    const auto parts = timed.parts();
    double total = 0;
    for (const auto& part : parts) total += part.times.best() * part.n_steps / kPageTokens;
    for (const auto& part : parts)
      report.add(
          {.part = "profile",
           .name = fmt::format("{} x {}{}", part.n_calls, part.name,
                               part.n_steps < kPageTokens
                                   ? fmt::format(", in {} of {} steps", part.n_steps, kPageTokens)
                                   : ""),
           .times = part.times,
           .check = fmt::format("{:.1f} %", 100 * part.times.best() * part.n_steps / kPageTokens / total)});
    report.add({.part = "profile",
                .name = name(depth, n, "sequence(s): a step"),
                .times = Times::of(std::move(steps)),
                .tokens = static_cast<double>(n),
                .check = fmt::format("sum of the fastest calls {:.3f} ms", total * 1e3)});
  }

 private:
  SequenceId open() {
    const auto s = cache_->open();
    KV2_CHECK(s.has_value(), "no room for a sequence");
    return *s;
  }
  SequenceId fork() {
    const auto s = cache_->n_tokens(base_) == 0 ? cache_->open() : cache_->fork(base_);
    KV2_CHECK(s.has_value(), "no room for a fork");
    return *s;
  }
  /// Pseudo-random words: attention and weights do not care which.
  int32_t token(int64_t position) const {
    return static_cast<int32_t>((position * 7919 + 13) % std::min(model_.config().vocab, 32000));
  }
  /// One forward: n rows each of the given sequences; results of every last row, or logits of every row.
  enum class Logits { Best, All, None };  // Best: the token alone, as greedy text is made
  void step(const std::vector<SequenceId>& sequences, int n, Logits which) {
    Batch batch;
    for (const SequenceId s : sequences) {
      KV2_CHECK(cache_->reserve(s, n), "no pages");
      const int64_t at = cache_->n_tokens(s);
      batch.slices.push_back(
          {.sequence = s, .first_row = static_cast<int>(batch.tokens.size()), .n_rows = n});
      for (int i = 0; i < n; i++) {
        batch.tokens.push_back(token(at + i));
        if (which == Logits::All || (which == Logits::Best && i == n - 1))
          batch.logit_rows.push_back(static_cast<int32_t>(batch.tokens.size()) - 1);
      }
    }
    if (which == Logits::Best) {
      best_.resize(batch.logit_rows.size());
      return model_.forward_best(batch, *cache_, best_);
    }
    logits_.resize(batch.logit_rows.size() * static_cast<size_t>(model_.config().vocab));
    model_.forward(batch, *cache_, logits_, nullptr);
  }
  void grow(int64_t depth) {
    if (pages_) return pages_->extend(*cache_, base_, depth);
    for (int64_t at; (at = cache_->n_tokens(base_)) < depth;) {
      throw_if_interrupted();
      step({base_}, static_cast<int>(std::min<int64_t>(o_.prompt, depth - at)), Logits::None);
    }
  }

  /// Largest KL divergence of the next positions, prefill against single steps.
  double compare() {
    const size_t vocab = static_cast<size_t>(model_.config().vocab);
    const SequenceId a = fork();
    step({a}, compared_, Logits::All);
    const std::vector<float> whole = logits_;
    cache_->close(a);
    const SequenceId b = fork();
    double largest = 0;
    for (int i = 0; i < compared_; i++) {
      step({b}, 1, Logits::All);
      largest = std::max(largest, divergence(whole.data() + i * vocab, logits_.data(), vocab));
    }
    cache_->close(b);
    return largest;
  }
  static double divergence(const float* p, const float* q, size_t n) {
    if (std::equal(p, p + n, q)) return 0;
    const double top_p = *std::max_element(p, p + n), top_q = *std::max_element(q, q + n);
    double sum_p = 0, sum_q = 0, mixed = 0;
    for (size_t i = 0; i < n; i++) {
      const double e = std::exp(p[i] - top_p);
      sum_p += e;
      sum_q += std::exp(q[i] - top_q);
      mixed += e * ((p[i] - top_p) - (q[i] - top_q));
    }
    return mixed / sum_p - std::log(sum_p) + std::log(sum_q);
  }

  BenchRow prefill(int64_t depth) {
    std::vector<double> seconds;
    for (int i = 0; i <= std::max(1, o_.repeats / 2); i++) {
      throw_if_interrupted();
      const SequenceId s = fork();
      const auto start = std::chrono::steady_clock::now();
      step({s}, o_.prompt, Logits::Best);
      if (i > 0)
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      cache_->close(s);
    }
    return {.part = "prefill",
            .name = name(depth, o_.prompt, "tokens"),
            .times = Times::of(std::move(seconds)),
            .tokens = static_cast<double>(o_.prompt)};
  }

  BenchRow decode(int64_t depth, int n, const char* part, double divergence) {
    std::vector<SequenceId> sequences;
    for (int i = 0; i < n; i++) {
      sequences.push_back(pages_ && n > 1 ? open() : fork());
      if (pages_) pages_->extend(*cache_, sequences.back(), depth);
    }
    const Times times = time_of(o_.repeats, [&] {
      for (int i = 0; i < o_.steps; i++) step(sequences, 1, Logits::Best);
    });
    for (const SequenceId s : sequences) cache_->close(s);
    const double kv = cache_->plan().bytes_for(depth), weights = static_cast<double>(model_.weight_bytes());
    return {.part = part,
            .name = name(depth, n, n == 1 ? "sequence" : "sequences"),
            .times = times,
            .tokens = static_cast<double>(n * o_.steps),
            .bytes = o_.steps * (weights + (depth > 0 ? n * kv : 0)),
            .error = divergence,
            .check = divergence >= 0 ? "KL, prefill against steps" : ""};
  }
  /// What `kv2 plan --ctx n --chunk` says: this cache has room for forks, too, which a run does without.
  size_t planned_for(int64_t n_tokens) const {
    const CacheCapacity one{.context_tokens = std::max<int64_t>(n_tokens, 1), .chunk_tokens = o_.prompt};
    return plan_cache(spec_, model_.config().kv_shape(), one).total_bytes();
  }
  std::string name(int64_t depth, int n, const char* what) const {
    return fmt::format("{}{} depth {}{}, {} {}", spec_.method_text(),
                       model_.has_absorbed_values() ? ", absorbed" : "", depth,
                       pages_ ? " (random pages)" : "", n, what);
  }

  const BenchOptions& o_;
  std::vector<int64_t> depths_;
  Model& model_;
  CacheSpec spec_;
  const int compared_;  // positions
  int64_t context_ = 0;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<RandomPages> pages_;  // where a depth is not reached by a prompt
  SequenceId base_{};
  std::vector<float> logits_;
  std::vector<int32_t> best_;
};

}  // namespace

void require_room(const BenchOptions& o) {
  const int64_t positions = read_config(*open_model_file(o.model.model)).context;
  if (o.absorb) require_turned_values(o.specs("bf16,quarot2"));
  int64_t steps = o.wants("profile") ? kPageTokens + 1 : 0;
  if (o.wants("decode") || o.wants("batch")) steps = std::max(steps, int64_t{o.repeats + 1} * o.steps);
  for (const int64_t d : depths_of(o)) {
    if (o.wants("prefill") && d + o.prompt > positions)
      throw_error(ErrorCode::BadArgument,
                  "--depth {} and a prompt of {} do not fit into the {} positions of this model; give a "
                  "smaller --depth or --prompt",
                  d, o.prompt, positions);
    if (steps > 0 && d + steps > positions)
      throw_error(ErrorCode::BadArgument,
                  "--depth {} and {} measured steps do not fit into the {} positions of this model; give a "
                  "smaller --depth, --steps or --repeat",
                  d, steps, positions);
  }
}

void bench_model(const BenchOptions& o, BenchReport& report) {
  const int rows = std::max(o.prompt, most_sequences(o));
  const auto backend = open_device(o.model.device_options());
  if (o.absorb) require_absorbing(*open_model_file(o.model.model), *backend);  // before bf16 is measured
  const auto model = Model::load(o.model.model, *backend, rows);
  log_info(fmt::format("backend      {}", backend->describe()));
  log_info(fmt::format("weights      {}", format_bytes(model->weight_bytes())));
  for (const CacheSpec& spec : o.specs("bf16,quarot2")) {
    auto calibration =
        spec.method.needs_calibration() ? find_calibration(*model, o.cache.calibration) : std::nullopt;
    ModelBench bench(o, *model, spec, calibration ? &*calibration : nullptr);
    calibration.reset();  // the cache has its own
    trim_heap();
    bench.run(report);
  }
  log_info(fmt::format("peak memory  {}", format_bytes(peak_memory())));
}

void bench_profile(const BenchOptions& o, BenchReport& report) {
  const auto backend = open_device(o.model.device_options());
  if (o.absorb) require_absorbing(*open_model_file(o.model.model), *backend);
  for (const CacheSpec& spec : o.specs("bf16,quarot2")) {
    TimedBackend timed(*backend);
    const auto model = Model::load(o.model.model, timed, std::max(o.prompt, o.model_batches().back()));
    auto calibration =
        spec.method.needs_calibration() ? find_calibration(*model, o.cache.calibration) : std::nullopt;
    ModelBench(o, *model, spec, calibration ? &*calibration : nullptr).profile(timed, report);
  }
}

}  // namespace kv2::app
