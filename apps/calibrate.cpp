// SPDX-License-Identifier: Apache-2.0
// kv2 calibrate MODEL: measures what attention consumes and writes one calibration file.
#include "calibrate/calibrate.h"

#include <fmt/format.h>

#include "apps/options.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "eval/npy.h"

namespace kv2::app {
namespace {

struct Options {
  ModelOptions model;
  TokenSource source;
  CalibrateOptions calibrate;
  std::string out, positions = "uniform", save_tokens;
};

void run(const Options& o) {
  catch_interrupts();
  for (const std::string& path : {o.out, o.save_tokens})  // said before minutes are spent
    if (!path.empty()) require_writable(path);
  Session s = open_session(o.model, 512);
  log_info(fmt::format("backend      {}", s.backend->describe()));
  const std::string path = o.out.empty() ? default_calibration_path(s.model->fingerprint()) : o.out;
  if (o.out.empty()) {
    make_cache_folder_of(path);
    require_writable(path);
  }
  std::vector<int32_t> tokens;
  std::string source = "sampled from the model";
  if (o.source.given()) {
    tokens = o.source.read(s);
    source = "text of the user";
  } else {
    tokens = sample_calibration_text(*s.model, o.calibrate);
  }
  if (!o.save_tokens.empty()) write_npy_tokens(o.save_tokens, tokens);
  CalibrateOptions options = o.calibrate;
  options.positions = o.positions == "window" ? CalibrationPositions::Window : CalibrationPositions::Uniform;
  Calibration c = calibrate(*s.model, tokens, options);
  c.notes["source"] = source;
  c.save(path);
  double clip_k = 0, clip_v = 0;
  for (const LayerCalibration& l : c.layers) clip_k += l.clip_k, clip_v += l.clip_v;
  const double n = static_cast<double>(c.layers.size());
  log_info(fmt::format("calibrated on {} tokens ({}); mean clips K {:.3f} V {:.3f}", c.n_tokens, source,
                       clip_k / n, clip_v / n));
  fmt::print("{}\n", path);
}

}  // namespace

void add_calibrate(CLI::App& program) {
  auto* app = program.add_subcommand("calibrate", "measure a model once; no data set needed");
  auto o = std::make_shared<Options>();
  o->model.add_to(*app);
  o->source.add_to(*app);
  app->add_option("--out", o->out, "default: the user's cache, where run and eval find it");
  app->add_option("--n-tokens", o->calibrate.n_tokens, "tokens of statistics")
      ->check(CLI::Range(256, 1 << 24));
  app->add_option("--held-out", o->calibrate.n_held_out, "tokens of the clip search; 0: the published clips")
      ->check(CLI::Range(0, 1 << 20));
  app->add_option("--window", o->calibrate.window, "length of one calibration sequence")
      ->check(CLI::Range(64, 1 << 20));
  app->add_option(
         "--positions", o->positions,
         "uniform: queries and keys are measured all over the context; window: where the text had them")
      ->check(CLI::IsMember({"uniform", "window"}));
  app->add_option("--save-tokens", o->save_tokens, "write the calibration text as token ids (.npy)");
  add_seed(*app, o->calibrate.seed, "of the sampled text");
  app->callback([o] { run(*o); });
}

}  // namespace kv2::app
