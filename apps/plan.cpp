// SPDX-License-Identifier: Apache-2.0
// kv2 plan MODEL: the memory a run will take, from the same arithmetic that allocates it. Loads no weights.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/options.h"
#include "base/check.h"
#include "base/memory.h"
#include "cache/cache_plan.h"
#include "engine/transforms.h"
#include "ops/device_extras.h"

namespace kv2::app {
namespace {

struct Options {
  ModelOptions model;
  CacheOptions cache;
  std::vector<std::string> kv;
  int64_t ctx = 0;
  int parallel = 1, chunk = 512;
  bool json = false;
};

/// Of all sequences' tokens, as all-in bits count them; the rest of a plan is the bf16 pages of a chunk, and
/// the method's matrices and tables.
size_t token_bytes(const CachePlan& p) {
  return std::min(p.total_bytes(), p.bytes_for(p.capacity.context_tokens) * p.capacity.n_sequences);
}

nlohmann::ordered_json row(const CacheSpec& spec, const CachePlan& p, const ModelPlan& m) {
  const int64_t n = p.capacity.context_tokens;
  return {{"method", spec.method_text()},
          {"sink", spec.sink_tokens},
          {"recent", spec.recent_tokens},
          {"prefill", spec.prefill == PrefillPolicy::Exact ? "exact" : "windowed"},
          {"ctx", n},
          {"parallel", p.capacity.n_sequences},
          {"history_bits", p.layout.history_bits()},
          {"all_in_bits", p.all_in_bits(n)},
          {"kv_bytes", token_bytes(p)},
          {"chunk_bytes", p.total_bytes() - token_bytes(p)},
          {"full_pages", p.n_full_pages},
          {"packed_pages", p.n_packed_pages},
          {"weight_bytes", m.weight_bytes},
          {"scratch_bytes", m.scratch_bytes},
          {"total_bytes", p.total_bytes() + m.weight_bytes + m.scratch_bytes}};
}

void run(const Options& o) {
  const auto file = open_model_file(o.model.model);
  const ModelConfig config = read_config(*file);
  const auto backend = open_device(o.model.device_options());
  const int64_t ctx = o.ctx > 0 ? o.ctx : config.context;
  if (ctx > config.context)
    throw_error(ErrorCode::BadArgument, "--ctx {} is past the {} positions this model was trained for", ctx,
                config.context);
  const std::vector<CacheSpec> specs = o.cache.specs(o.kv);
  for (const CacheSpec& spec : specs) {  // all of them are sound before the first line is printed
    spec.validate(config.head_dim);
    PageLayout::of(spec, config.kv_shape());
  }
  if (!o.cache.calibration.empty()) require_shape(Calibration::load(o.cache.calibration), config.kv_shape());
  const ModelPlan model_plan = plan_model(*file, *backend, o.chunk);
  const size_t room = free_memory(*backend);
  if (!o.json) {
    fmt::print("{} ({}): {} layers, {} query and {} KV heads of {}, trained for {} tokens\n", config.name,
               name_of(config.architecture), config.n_layers, config.n_heads, config.n_kv_heads,
               config.head_dim, config.context);
    fmt::print("{} sequence{} of {} tokens, chunks of {}; {} of memory are free\n\n", o.parallel,
               o.parallel == 1 ? "" : "s", ctx, o.chunk, format_bytes(room));
    fmt::print("{:<28} {:>9} {:>9} {:>11} {:>11} {:>11} {:>11} {:>11} {:>14}\n", "method", "history",
               "all-in", "kv", "kv's chunk", "weights", "scratch", "total", "fits up to");
  }
  for (const CacheSpec& spec : specs) {
    const CacheCapacity capacity{.context_tokens = ctx, .n_sequences = o.parallel, .chunk_tokens = o.chunk};
    const CachePlan p = plan_cache(spec, config.kv_shape(), capacity);
    const size_t fixed = model_plan.weight_bytes + model_plan.scratch_bytes;
    const int64_t fits =
        context_that_fits(spec, config.kv_shape(), capacity, room > fixed ? room - fixed : 0);
    if (o.json) {
      fmt::print("{}\n", row(spec, p, model_plan).dump());
      continue;
    }
    fmt::print("{:<28} {:>9.3f} {:>9.3f} {:>11} {:>11} {:>11} {:>11} {:>11} {:>14}\n", spec.method_text(),
               p.layout.history_bits(), p.all_in_bits(ctx), format_bytes(token_bytes(p)),
               format_bytes(p.total_bytes() - token_bytes(p)), format_bytes(model_plan.weight_bytes),
               format_bytes(model_plan.scratch_bytes), format_bytes(p.total_bytes() + fixed),
               fmt::format("{} tokens", fits));
  }
}

}  // namespace

void add_plan(CLI::App& program) {
  auto* app = program.add_subcommand("plan", "memory of a context, before anything is loaded");
  auto o = std::make_shared<Options>();
  o->model.add_to(*app);
  o->cache.add_to(*app);
  add_kv_list(*app, o->kv, "bf16,kv2");
  app->add_option("--ctx", o->ctx, "tokens per sequence; default: what the model was trained for")
      ->check(at_least(0));
  app->add_option("--parallel", o->parallel, "sequences held at once")->check(CLI::Range(1, 1 << 20));
  app->add_option("--chunk", o->chunk, "prompt tokens of one step")->check(CLI::Range(1, 1 << 16));
  app->add_flag("--json", o->json, "one JSON object per method");
  app->callback([o] { run(*o); });
}

}  // namespace kv2::app
