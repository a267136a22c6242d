// SPDX-License-Identifier: Apache-2.0
// kv2 eval report FILE… --out PAGE: JSON lines of the judges as one HTML page; or, with --model, a default
// set of judges measured first.
#include "eval/report.h"

#include <fmt/format.h>

#include "apps/eval.h"
#include "apps/norm_bases.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "eval/attention_error.h"

namespace kv2::app {
namespace {

struct Options {
  std::vector<std::string> files;
  std::string out, title = "kv2: quality of a quantized KV cache";
  ModelOptions model;
  CacheOptions cache;
  TokenSource source;
  std::vector<std::string> kv;
  int64_t max_tokens = 4096;
};

constexpr int kChunk = 256;

/// kld, attend and norms of one text.
std::string measure(const Options& o) {
  const std::vector<CacheSpec> specs = o.cache.specs(o.kv);
  Session s = open_judge(o.model, kChunk);
  const auto calibration = calibration_for(s, o.model, specs, o.cache.calibration);
  const Calibration* c = calibration ? &*calibration : nullptr;
  std::vector<int32_t> tokens = o.source.read(s);
  if (o.max_tokens > 0 && static_cast<int64_t>(tokens.size()) > o.max_tokens)
    tokens.resize(static_cast<size_t>(o.max_tokens));
  std::string lines;
  for (const auto& r : measure_divergence(*s.model, tokens, specs, c, {.chunk_tokens = kChunk}))
    lines += to_json(r) + "\n";
  std::vector<CacheSpec> quantized;
  for (const CacheSpec& spec : specs)
    if (spec.method.quantized()) quantized.push_back(spec);
  for (const auto& r : measure_attention_error(*s.model, tokens, quantized, c, {.chunk_tokens = kChunk}))
    lines += to_json_lines(r);
  lines += to_json_lines(measure_token_norms(
      *s.model, tokens, norm_bases(*s.model, calibration, o.model.model), {.chunk_tokens = kChunk}));
  return RunRecord(s, o.model, tokens, calibration).stamp(lines);
}

void run(const Options& o) {
  if (o.files.empty() && o.model.model.empty())
    throw_error(ErrorCode::BadArgument,
                "nothing to report: give files of `kv2 eval JUDGE … --json`, or --model MODEL --text FILE to "
                "measure a default set");
  std::vector<ResultFile> results;
  for (const std::string& path : o.files) results.push_back({path, read_file(path, size_t{1} << 30)});
  if (!o.files.empty()) report_html(results, o.title);  // what is wrong is said before anything is measured
  require_writable(o.out);
  if (!o.model.model.empty()) results.push_back({"the measured set", measure(o)});
  const std::string page = report_html(results, o.title);
  write_file_atomically(o.out, [&](std::FILE* f) { write_all(f, std::as_bytes(std::span(page))); });
  fmt::print("{}\n", o.out);
}

}  // namespace

void add_eval_report(CLI::App& eval) {
  auto* app = eval.add_subcommand("report", "results of the judges as one HTML page without network");
  auto o = std::make_shared<Options>();
  app->add_option("files", o->files, "JSON lines of `kv2 eval JUDGE … --json`");
  app->add_option("-o,--out", o->out, "the page to write")->required();
  app->add_option("--title", o->title, "of the page");
  auto* measured = app->add_option_group("measured set", "kld, attend and norms of a text, measured now");
  measured->add_option("--model", o->model.model, "a .gguf file or a Hugging Face directory");
  measured->add_option("--device", o->model.device,
                       "cpu, cuda:0 (in builds with CUDA), or reference (the scalar oracle, slow)");
  measured->add_option("--threads", o->model.threads, "default: the cores this process may use")
      ->check(CLI::Range(0, 1024));
  measured->add_option("--max-tokens", o->max_tokens, "of the text; 0: all")
      ->check(at_least(0))
      ->capture_default_str();
  o->cache.add_to(*measured);
  o->source.add_to(*measured);
  add_kv_list(*measured, o->kv, "bf16,naive2,quarot2,oscar2,kv2");
  app->callback([o] { run(*o); });
}

}  // namespace kv2::app
