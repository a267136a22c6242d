// SPDX-License-Identifier: Apache-2.0
// kv2 eval generate MODEL: long greedy texts of every method from the same prompts, against bf16's.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/eval.h"
#include "apps/prompts.h"
#include "base/check.h"
#include "base/file.h"
#include "eval/generation.h"

namespace kv2::app {
namespace {

struct Options {
  EvalOptions eval;
  PromptSource prompts;
  GenerationOptions generation;
  std::string save;
};

/// One JSON line per method and prompt: prompt number, token ids, text where there is a tokenizer.
void save_texts(const std::string& path, const std::vector<GenerationRun>& runs, const Tokenizer* tokenizer) {
  write_file_atomically(path, [&](std::FILE* file) {
    for (const GenerationRun& run : runs)
      for (size_t i = 0; i < run.texts.size(); i++) {
        nlohmann::ordered_json j;
        j["method"] = run.result.method;
        j["prompt"] = i;
        j["tokens"] = run.texts[i];
        if (tokenizer != nullptr) j["text"] = tokenizer->decode(run.texts[i], Tokenizer::Special::Parse);
        const std::string line = j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
        write_all(file, std::as_bytes(std::span(line)));
      }
  });
}

void run(const Options& o) {
  o.eval.check();
  if (!o.save.empty()) require_writable(o.save);
  Session s = open_judge(o.eval.model, std::max(o.generation.chunk_tokens, o.generation.batch));
  const std::vector<CacheSpec> specs = o.eval.specs(*s.model);
  const auto prompts = o.prompts.read(s);
  const auto calibration = calibration_for(s, o.eval.model, specs, o.eval.cache.calibration);
  std::vector<int32_t> text;
  for (const auto& prompt : prompts) text.insert(text.end(), prompt.begin(), prompt.end());
  const RunRecord record(s, o.eval.model, text, calibration, o.eval.schedule);
  const auto print = [&](const GenerationRun& r) {
    if (o.eval.json) fmt::print("{}", record.stamp(to_json(r.result) + "\n")), std::fflush(stdout);
  };
  const auto runs = measure_generation(*s.model, specs, calibration ? &*calibration : nullptr, prompts,
                                       o.generation, print);
  std::vector<GenerationResult> results;
  for (const GenerationRun& r : runs) results.push_back(r.result);
  if (!o.eval.json) fmt::print("{}", to_table(results));
  if (!o.save.empty()) save_texts(o.save, runs, s.tokenizer.get());
}

}  // namespace

void add_eval_generate(CLI::App& eval) {
  auto* app =
      eval.add_subcommand("generate", "long greedy texts: where they leave bf16's, loops and collapses");
  auto o = std::make_shared<Options>();
  o->eval.add_to(*app, "bf16,quarot2");
  o->eval.add_schedule_to(*app);
  o->prompts.add_to(*app);
  app->add_option("--max-tokens", o->generation.max_tokens, "of each text")
      ->check(at_least(1))
      ->capture_default_str();
  app->add_option("--batch", o->generation.batch, "texts decoded together")
      ->check(CLI::Range(1, 1 << 12))
      ->capture_default_str();
  app->add_option("--chunk", o->generation.chunk_tokens, "prompt tokens per forward")
      ->check(CLI::Range(1, 1 << 14))
      ->capture_default_str();
  app->add_flag("--ignore-eos", o->generation.ignore_eos, "go on behind the model's end of text");
  app->add_option("--save", o->save, "write all texts to a file, one JSON object per line");
  app->callback([o] { run(*o); });
}

}  // namespace kv2::app
