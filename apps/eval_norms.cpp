// SPDX-License-Identifier: Apache-2.0
// kv2 eval norms MODEL: token norms of Q, K and V, and what they do to keys coded per channel.
#include <fmt/format.h>

#include "apps/command_line.h"
#include "apps/eval.h"
#include "apps/norm_bases.h"
#include "base/log.h"
#include "engine/transforms.h"

namespace kv2::app {
namespace {

struct Options {
  ModelOptions model;
  TokenSource source;
  TokenNormOptions norms;
  std::string calibration;
  bool json = false;
};

void run(const Options& o) {
  Session s = open_judge(o.model, o.norms.chunk_tokens);
  const std::optional<Calibration> calibration = find_calibration(*s.model, o.calibration);
  const std::vector<int32_t> tokens = o.source.read(s);
  const TokenNormResult r =
      measure_token_norms(*s.model, tokens, norm_bases(*s.model, calibration, o.model.model), o.norms);
  if (o.json)
    fmt::print("{}", RunRecord(s, o.model, tokens, calibration).stamp(to_json_lines(r)));
  else
    fmt::print("{}", to_table(r));
}

}  // namespace

std::vector<NamedTransforms> norm_bases(const Model& model, const std::optional<Calibration>& calibration,
                                        const std::string& path) {
  const KvShape shape = model.config().kv_shape();
  std::vector<NamedTransforms> out = {{"none", {}}};
  try {
    const Transform h = hadamard_transform(shape.n_kv_heads, shape.head_dim);
    out.push_back({"hadamard", std::vector<LayerTransforms>(shape.n_layers, {h, h})});
  } catch (const Error& e) {
    if (e.code() != ErrorCode::Unsupported) throw;
    log_info(fmt::format("no Hadamard basis here: {}", e.what()));
  }
  if (calibration)
    out.push_back({"calibrated", fit_method(CacheSpec::parse("oscar2"), shape, &*calibration).transforms});
  else
    log_info(
        fmt::format("no calibration of this model was found: no calibrated basis here (kv2 calibrate {})",
                    shell_quoted(path)));
  return out;
}

void add_eval_norms(CLI::App& eval) {
  auto* app = eval.add_subcommand("norms", "token norms of Q, K and V, and the bound of OScaR");
  auto o = std::make_shared<Options>();
  o->model.add_to(*app);
  o->source.add_to(*app);
  app->add_option("--calibration", o->calibration, "adds the calibrated basis; default: as for run");
  app->add_option("--max-tokens", o->norms.max_tokens, "of the text; default: all")->check(at_least(0));
  app->add_option("--chunk", o->norms.chunk_tokens, "tokens per forward")->check(CLI::Range(2, 1 << 14));
  app->add_option("--group", o->norms.group, "tokens that share a scale per channel")
      ->check(CLI::Range(2, 1024))
      ->capture_default_str();
  app->add_option("--skip", o->norms.skip_tokens, "first tokens that are not coded, whole groups")
      ->check(at_least(0))
      ->capture_default_str();
  app->add_flag("--json", o->json, "JSON lines instead of tables");
  app->callback([o] { run(*o); });
}

}  // namespace kv2::app
