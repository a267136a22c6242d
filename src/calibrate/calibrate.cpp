// SPDX-License-Identifier: Apache-2.0
#include "calibrate/calibrate.h"

#include <algorithm>

#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "calibrate/clip_search.h"
#include "calibrate/sequence_walk.h"
#include "calibrate/statistics.h"
#include "calibrate/text_hash.h"
#include "calibrate/uniform_positions.h"
#include "calibrate/value_metric.h"
#include "engine/transforms.h"

namespace kv2 {
namespace {

void check_options(const Model& model, const CalibrateOptions& o) {
  const auto refuse = [](const char* what, int64_t found) {
    throw_error(ErrorCode::BadArgument, "calibration: {}, got {}", what, found);
  };
  if (o.n_tokens < 1) refuse("at least one token is needed for the statistics", o.n_tokens);
  if (o.n_held_out < 0) refuse("the number of held-out tokens cannot be negative", o.n_held_out);
  if (o.window < 1) refuse("the window must be one token or more", o.window);
  if (o.window > model.config().context)
    throw_error(ErrorCode::BadArgument, "calibration window of {} tokens, but the model's context is {}",
                o.window, model.config().context);
}

void check_tokens(const Model& model, const std::vector<int32_t>& tokens, int64_t needed, int64_t held_out) {
  if (static_cast<int64_t>(tokens.size()) < needed)
    throw_error(
        ErrorCode::BadArgument,
        "calibration needs {} tokens ({} for statistics and {} held out), the text has {}: give more text or "
        "ask for fewer tokens",
        needed, needed - held_out, held_out, tokens.size());
  require_in_vocabulary(std::span(tokens).first(needed), model.config(), "calibration");
}

/// Walks `tokens` in windows, each a fresh bf16 sequence, every window in chunks.
void observe(Model& model, std::span<const int32_t> tokens, int64_t window, int chunk, Observer& observer,
             const std::string& title) {
  window = std::min<int64_t>(window, static_cast<int64_t>(tokens.size()));
  SequenceWalk walk(model, CacheSpec::parse("bf16"), nullptr, window, chunk);
  Progress progress(title, static_cast<int64_t>(tokens.size()));
  for (size_t first = 0; first < tokens.size(); first += window) {
    walk.restart(0);
    const auto text = tokens.subspan(first, std::min<size_t>(window, tokens.size() - first));
    for (size_t begin = 0; begin < text.size(); begin += chunk) {
      throw_if_interrupted();
      const auto piece = text.subspan(begin, std::min<size_t>(chunk, text.size() - begin));
      walk.advance(piece, {}, &observer);
      progress.advance(static_cast<int64_t>(piece.size()));
    }
  }
}

/// Clips of every layer for the method that reads them, oscar2 as its row in the methods table has it.
void search_clips(Model& model, std::span<const int32_t> held_out, int64_t window, ThreadTeam& team,
                  Calibration& calibration) {
  const KvShape shape = model.config().kv_shape();
  const CacheSpec spec = CacheSpec::parse("oscar2");
  ClipSearch search(shape, fit_method(spec, shape, &calibration).transforms,
                    {.ratios = ClipSearch::default_ratios(), .group = default_group(shape.head_dim)}, team);
  // A window must come in one forward; 512 tokens keep its n² small and still leave 448 keys behind the sink.
  const int rows = static_cast<int>(std::min<int64_t>({window, model.max_rows(), 512}));
  if (rows <= kPageTokens) {
    log_warning(fmt::format(
        "calibration: windows of {} tokens are too short for a clip search (more than {} needed); "
        "the published clips stay",
        rows, kPageTokens));
    return;
  }
  observe(model, held_out, rows, rows, search, "clips");
  for (int l = 0; l < shape.n_layers; l++) {
    const ClipSearch::Clips best = search.best(l);
    calibration.layers[l].clip_k = best.k;
    calibration.layers[l].clip_v = best.v;
  }
}

}  // namespace

Calibration calibrate(Model& model, const std::vector<int32_t>& tokens, const CalibrateOptions& options) {
  check_options(model, options);
  const int64_t needed = options.n_tokens + options.n_held_out;
  check_tokens(model, tokens, needed, options.n_held_out);
  const std::span<const int32_t> text(tokens.data(), static_cast<size_t>(needed));
  const KvShape shape = model.config().kv_shape();
  const int chunk = static_cast<int>(std::min<int64_t>(model.max_rows(), options.window));
  ThreadTeam team(options.n_threads);

  Statistics statistics(shape, team);
  UniformPositions everywhere(model.config(), statistics);
  Observer& observer =
      options.positions == CalibrationPositions::Uniform ? static_cast<Observer&>(everywhere) : statistics;
  observe(model, text.first(options.n_tokens), options.window, chunk, observer, "statistics");
  Calibration out;
  out.model_fingerprint = model.fingerprint();
  out.n_kv_heads = shape.n_kv_heads;
  out.head_dim = shape.head_dim;
  out.n_tokens = options.n_tokens;
  out.text_hash = hash_tokens(text);
  for (int l = 0; l < shape.n_layers; l++) {
    out.layers.push_back(statistics.layer(l));
    out.layers.back().metric_v = value_metric(model, l, team);
  }
  if (options.n_held_out > 0) search_clips(model, text.subspan(options.n_tokens), options.window, team, out);
  out.notes["tool"] = "kv2 " KV2_VERSION;
  out.notes["source"] = options.source;
  out.notes["window"] = std::to_string(options.window);
  out.notes["positions"] = options.positions == CalibrationPositions::Uniform ? "uniform" : "window";
  out.notes["chunk"] = std::to_string(chunk);
  out.notes["held_out"] = std::to_string(options.n_held_out);
  out.notes["seed"] = std::to_string(options.seed);
  return out;
}

std::string default_calibration_path(const std::string& fingerprint) {
  return user_cache_dir() + "/calibration/" + fingerprint + ".safetensors";
}

}  // namespace kv2
