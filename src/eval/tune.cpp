// SPDX-License-Identifier: Apache-2.0
#include "eval/tune.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/log.h"
#include "eval/tune_grid.h"

namespace kv2 {
namespace {

constexpr double kGain = 0.99;  // a move must divide the divergence by more than this

std::string describe(const PricedPoint& p) {
  return fmt::format("{} --sink {} --recent {}", p.spec.method_text(), p.spec.sink_tokens,
                     p.spec.recent_tokens);
}

class Search {
 public:
  Search(Model& model, const std::vector<int32_t>& tokens, const Calibration* calibration,
         const TuneOptions& options, const std::function<void(const std::string&)>& say)
      : model_(model), tokens_(tokens), calibration_(calibration), options_(options), say_(say) {}

  struct Scored {
    PricedPoint point;
    double kl = 0;
  };

  /// One pass over the first n tokens for all points; scores compare within a call.
  std::vector<DivergenceResult> measure(const std::vector<PricedPoint>& points, int64_t n_tokens) {
    std::vector<CacheSpec> specs;
    for (const PricedPoint& p : points) specs.push_back(p.spec);
    const DivergenceOptions options{
        .max_tokens = n_tokens, .chunk_tokens = options_.chunk_tokens, .n_threads = options_.n_threads};
    return measure_divergence(model_, tokens_, specs, calibration_, options);
  }

  /// On the short text, the best first.
  std::vector<Scored> rank(const std::vector<PricedPoint>& points) {
    const auto results = measure(points, options_.short_tokens);
    std::vector<Scored> out;
    for (size_t i = 0; i < points.size(); i++) {
      out.push_back({points[i], results[i].kl_mean});
      remember(out.back());
    }
    std::stable_sort(out.begin(), out.end(), [](const Scored& a, const Scored& b) { return a.kl < b.kl; });
    return out;
  }

  /// From the best start to a point that no single knob improves.
  void descend(Scored at, const TuneBudget& budget) {
    for (int round = 1; round <= options_.rounds; round++) {
      std::vector<PricedPoint> points = neighbours(at.point.point, budget);
      if (calibration_ == nullptr)  // searched clips and the like are no neighbours then
        std::erase_if(points, [](const PricedPoint& p) { return p.spec.method.needs_calibration(); });
      points.insert(points.begin(), at.point);
      if (points.size() == 1) return;
      const std::vector<Scored> ranked = rank(points);
      const auto own = std::find_if(ranked.begin(), ranked.end(),
                                    [&](const Scored& s) { return s.point.spec == at.point.spec; });
      say_(fmt::format("round {}: {} candidates, best {} at {:.4g} bits, KL {:.5f} (was {:.5f})", round,
                       points.size(), describe(ranked[0].point), ranked[0].point.bits, ranked[0].kl,
                       own->kl));
      if (ranked[0].kl >= kGain * own->kl) return;
      at = ranked[0];
    }
  }

  /// The best few of all, measured on the longer text; the default of the first method among them, so that
  /// the gain can be seen.
  std::vector<TuneChoice> confirm(const PricedPoint& first) {
    std::stable_sort(seen_.begin(), seen_.end(),
                     [](const Scored& a, const Scored& b) { return a.kl < b.kl; });
    std::vector<PricedPoint> points;
    for (const Scored& s : seen_)
      if (static_cast<int>(points.size()) < options_.finalists) points.push_back(s.point);
    if (std::none_of(points.begin(), points.end(), [&](const auto& p) { return p.spec == first.spec; }))
      points.push_back(first);
    const auto results = measure(points, options_.long_tokens);
    std::vector<TuneChoice> out;
    for (size_t i = 0; i < points.size(); i++) out.push_back({points[i].spec, points[i].bits, results[i]});
    std::stable_sort(out.begin(), out.end(), [](const TuneChoice& a, const TuneChoice& b) {
      return a.result.kl_mean < b.result.kl_mean;
    });
    return out;
  }

  int measured() const { return static_cast<int>(seen_.size()); }

 private:
  /// Every point once, with its latest score.
  void remember(const Scored& s) {
    const auto at = std::find_if(seen_.begin(), seen_.end(),
                                 [&](const Scored& x) { return x.point.spec == s.point.spec; });
    if (at == seen_.end())
      seen_.push_back(s);
    else
      at->kl = s.kl;
  }

  Model& model_;
  const std::vector<int32_t>& tokens_;
  const Calibration* calibration_;
  const TuneOptions& options_;
  const std::function<void(const std::string&)>& say_;
  std::vector<Scored> seen_;
};

/// The dearest points of every method within the budget.
std::vector<PricedPoint> starts(const std::vector<std::string>& methods, const Calibration* calibration,
                                const TuneBudget& budget, const TuneOptions& options,
                                const std::function<void(const std::string&)>& say) {
  std::vector<PricedPoint> out;
  double least = std::numeric_limits<double>::infinity();
  for (const std::string& method : methods) {
    const CacheSpec spec = CacheSpec::parse(method);  // an unknown method is said, not skipped
    if (!spec.method.quantized()) continue;
    if (spec.method.needs_calibration() && calibration == nullptr) {
      say(fmt::format("{} is left out: it needs a calibration of this model (kv2 calibrate {})", method,
                      options.model));
      continue;
    }
    int n = 0;
    for (const PricedPoint& p : priced_grid(method, budget)) {
      least = std::min(least, p.bits);
      if (p.bits > budget.bits + 1e-9 || n == options.starts) continue;
      out.push_back(p);
      n++;
    }
  }
  if (out.empty() && least < std::numeric_limits<double>::infinity())
    throw_error(ErrorCode::BadArgument,
                "tune: nothing fits in {} {} bits; the least on this model with these methods is {:.4g}",
                options.bits, options.all_in_tokens > 0 ? "all-in" : "history", least);
  if (out.empty())
    throw_error(ErrorCode::BadArgument,
                "tune: no method to search; give a quantized one with --kv, and a calibration where it needs "
                "one (kv2 calibrate {})",
                options.model);
  return out;
}

}  // namespace

TuneResult tune(Model& model, const std::vector<int32_t>& tokens, const Calibration* calibration,
                const std::vector<std::string>& methods, const TuneOptions& options,
                const std::function<void(const std::string&)>& say) {
  if (!(options.bits > 0) || options.all_in_tokens < 0 || options.starts < 1 || options.rounds < 0 ||
      options.finalists < 1 || options.short_tokens < 1 || options.long_tokens < options.short_tokens)
    throw_error(
        ErrorCode::BadArgument,
        "tune: {} bits, {} starts, {} rounds, {} finalists, texts of {} and {} tokens: bits, starts and "
        "finalists must be positive and the second text not shorter",
        options.bits, options.starts, options.rounds, options.finalists, options.short_tokens,
        options.long_tokens);
  if (options.all_in_tokens > model.config().context)
    throw_error(ErrorCode::BadArgument, "tune: all-in bits at {} tokens, but the model's context is {}",
                options.all_in_tokens, model.config().context);
  const TuneBudget budget{options.bits, options.all_in_tokens, model.config().kv_shape()};
  const std::vector<PricedPoint> from = starts(methods, calibration, budget, options, say);
  Search search(model, tokens, calibration, options, say);
  const std::vector<Search::Scored> ranked = search.rank(from);
  say(fmt::format("starts: {} candidates, best {} at {:.4g} bits, KL {:.5f}", ranked.size(),
                  describe(ranked[0].point), ranked[0].point.bits, ranked[0].kl));
  search.descend(ranked[0], budget);
  TuneResult out;
  out.finalists = search.confirm(from.front());
  out.measured = search.measured();
  return out;
}

std::string run_options(const CacheSpec& spec) {
  std::string text = spec.method_text();  // no parameter has a quote
  return fmt::format("--kv '{}' --sink {} --recent {}", text, spec.sink_tokens, spec.recent_tokens);
}

}  // namespace kv2
