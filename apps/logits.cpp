// SPDX-License-Identifier: Apache-2.0
// kv2 logits MODEL --tokens IDS.npy --out LOGITS.npy: raw logits for anyone who wants to compare. Needs no
// tokenizer.
#include "eval/logits.h"

#include "apps/options.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "engine/transforms.h"
#include "eval/npy.h"

namespace kv2::app {
namespace {

struct Options {
  ModelOptions model;
  CacheOptions cache;
  std::string tokens, out, kv = "bf16";
  bool absorb = false;
};

void run(const Options& o) {
  catch_interrupts();
  const CacheSpec spec = o.cache.spec(o.kv);
  if (o.absorb) require_turned_values(std::span(&spec, 1));
  require_writable(o.out);
  Session s = open_session(o.model, 256);
  std::optional<Calibration> calibration;
  if (spec.method.needs_calibration() || !o.cache.calibration.empty())
    calibration = find_calibration(*s.model, o.cache.calibration);
  require_calibration({spec}, calibration, o.model);
  if (o.absorb)
    s.model->absorb_values(
        fit_method(spec, s.model->config().kv_shape(), calibration ? &*calibration : nullptr).transforms);
  say_absorbed(*s.model, spec);
  TokenSource source{.text_file = "", .tokens_file = o.tokens};
  write_logits(*s.model, spec, calibration ? &*calibration : nullptr, source.read(s), o.out);
}

}  // namespace

void add_logits(CLI::App& program) {
  auto* app = program.add_subcommand("logits", "write logits [n_tokens, vocab] float32 of given token ids");
  auto o = std::make_shared<Options>();
  o->model.add_to(*app);
  o->cache.add_to(*app);
  app->add_option("--tokens", o->tokens, "token ids, a .npy file of integers")->required();
  app->add_option("--out", o->out, "the .npy file to write")->required();
  app->add_option("--kv", o->kv, kv_help());
  add_absorb(*app, o->absorb);
  app->callback([o] { run(*o); });
}

}  // namespace kv2::app
