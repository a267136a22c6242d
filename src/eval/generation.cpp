// SPDX-License-Identifier: Apache-2.0
#include "eval/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/log.h"
#include "calibrate/sequence_walk.h"
#include "engine/engine.h"
#include "eval/batch_feed.h"
#include "eval/history.h"
#include "eval/loops.h"
#include "eval/sign_test.h"

namespace kv2 {
namespace {

/// Where the first difference is; the shorter length where there is none.
int64_t first_difference(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

std::span<const int32_t> without_end(const std::vector<int32_t>& text, const std::vector<int32_t>& eos) {
  const bool ended = !text.empty() && std::find(eos.begin(), eos.end(), text.back()) != eos.end();
  return std::span(text).first(text.size() - ended);
}

double median(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? static_cast<double>(values[n / 2])
                    : static_cast<double>(values[n / 2 - 1] + values[n / 2]) / 2;
}

/// No text would read a code: bf16 would be judged under the method's name.
void require_history(int64_t longest_prompt, int64_t max_tokens, const CacheSpec& spec) {
  if (!spec.method.quantized()) return;
  // The last token asks nothing, and a prompt that is read in bf16 shows the first of the text.
  const int64_t first = first_position_with_history(spec),
                least = spec.prefill == PrefillPolicy::Exact
                            ? std::max<int64_t>(2, first + 2 - longest_prompt)
                            : first + 2 - longest_prompt;
  if (max_tokens >= least) return;
  throw_error(
      ErrorCode::BadArgument,
      "the history of {} begins at position {}, which no text reaches: the longest prompt has {} "
      "token{}, so {} or more are needed behind it (--max-tokens, here {}), or longer prompts, or less "
      "in bf16 (--sink, --recent)",
      spec.method.name, first, longest_prompt, longest_prompt == 1 ? "" : "s", least, max_tokens);
}

int64_t check_prompts(const Model& model, const std::vector<CacheSpec>& specs,
                      const std::vector<std::vector<int32_t>>& prompts, const GenerationOptions& o) {
  if (prompts.empty()) throw_error(ErrorCode::BadArgument, "no prompts: nothing to generate from");
  if (o.max_tokens < 1 || o.batch < 1 || o.chunk_tokens < 1)
    throw_error(ErrorCode::BadArgument,
                "{} tokens of {} texts at once in chunks of {}: all must be 1 at least", o.max_tokens,
                o.batch, o.chunk_tokens);
  int64_t longest = 0;
  for (const auto& prompt : prompts) {
    require_tokens(prompt, model.config(), "prompt");
    longest = std::max(longest, static_cast<int64_t>(prompt.size()));
  }
  if (longest + o.max_tokens > model.config().context)
    throw_error(
        ErrorCode::BadArgument,
        "the longest prompt has {} tokens: {} more are past the model's context of {}; at most {} fit "
        "(--max-tokens)",
        longest, o.max_tokens, model.config().context, model.config().context - longest);
  for (const CacheSpec& spec : specs) require_history(longest, o.max_tokens, spec);
  return longest + o.max_tokens;
}

GeneratedTexts generate(Model& model, const CacheSpec& spec, const Calibration* calibration, int64_t context,
                        const std::vector<std::vector<int32_t>>& prompts, const GenerationOptions& o,
                        Progress& progress) {
  const int together = std::min<int>({o.batch, static_cast<int>(prompts.size()), model.max_rows()});
  const int chunk = std::min(o.chunk_tokens, model.max_rows());
  const CacheCapacity capacity = capacity_that_fits(
      model, spec, {.context_tokens = context, .n_sequences = together, .chunk_tokens = chunk}, 1);
  Engine engine(
      model, {.cache = spec, .context = context, .n_sequences = capacity.n_sequences, .chunk_tokens = chunk},
      calibration);
  std::map<RequestId, size_t> index;
  for (size_t i = 0; i < prompts.size(); i++)
    index[engine.submit({.prompt = prompts[i],
                         .text = {},
                         .max_tokens = o.max_tokens,
                         .sampling = {},
                         .stop_tokens = {},
                         .ignore_eos = o.ignore_eos})] = i;
  GeneratedTexts texts(prompts.size());
  while (!engine.idle()) {
    throw_if_interrupted();
    for (const GenerateEvent& e : engine.step()) {
      std::vector<int32_t>& text = texts[index.at(e.request)];
      text.push_back(e.token);
      progress.advance(1);
      if (e.finish != FinishReason::None)  // a text that ends early is no work left
        progress.advance(o.max_tokens - static_cast<int64_t>(text.size()));
    }
  }
  return texts;
}

}  // namespace

void compare_texts(const GeneratedTexts& texts, const GeneratedTexts& bf16, const std::vector<int32_t>& eos,
                   GenerationResult& r) {
  KV2_CHECK(texts.size() == bf16.size() && !texts.empty(), "{} texts, {} of bf16", texts.size(), bf16.size());
  r.prompts = static_cast<int64_t>(texts.size());
  std::vector<int64_t> left;
  int64_t equal = 0, compared = 0;
  double sum_left = 0;
  for (size_t i = 0; i < texts.size(); i++) {
    const auto own = without_end(texts[i], eos), other = without_end(bf16[i], eos);
    r.tokens += static_cast<int64_t>(texts[i].size());
    r.ended += own.size() < texts[i].size();
    left.push_back(first_difference(own, other));
    sum_left += static_cast<double>(left.back());
    r.same += texts[i] == bf16[i];
    const size_t both = std::min(own.size(), other.size());
    for (size_t j = 0; j < both; j++) equal += own[j] == other[j];
    compared += static_cast<int64_t>(both);
    r.distinct_2 += distinct_ratio(own, 2);
    r.distinct_4 += distinct_ratio(own, 4);
    r.longest_loop += static_cast<double>(longest_loop(own).length);
    const bool here = collapsed(own), there = collapsed(other);
    r.collapsed += here;
    r.only_here += here && !there;
    r.only_bf16 += there && !here;
    const bool stuck_here = stuck(own), stuck_there = stuck(other);
    r.stuck += stuck_here;
    r.stuck_only_here += stuck_here && !stuck_there;
    r.stuck_only_bf16 += stuck_there && !stuck_here;
  }
  r.collapsed_p = sign_test(r.only_here, r.only_bf16);
  r.stuck_p = sign_test(r.stuck_only_here, r.stuck_only_bf16);
  const auto n = static_cast<double>(texts.size());
  r.left_mean = sum_left / n;
  r.left_median = median(left);
  r.agree = compared > 0 ? static_cast<double>(equal) / static_cast<double>(compared) : 1;
  r.distinct_2 /= n;
  r.distinct_4 /= n;
  r.longest_loop /= n;
}

std::vector<GenerationRun> measure_generation(Model& model, const std::vector<CacheSpec>& specs,
                                              const Calibration* calibration,
                                              const std::vector<std::vector<int32_t>>& prompts,
                                              const GenerationOptions& options,
                                              const std::function<void(const GenerationRun&)>& on_run) {
  const int64_t context = check_prompts(model, specs, prompts, options);
  int64_t n_runs = 1;
  for (const CacheSpec& spec : specs) n_runs += spec.method.quantized();
  Progress progress("generate", n_runs * static_cast<int64_t>(prompts.size()) * options.max_tokens);
  const GeneratedTexts bf16 =
      generate(model, CacheSpec::parse("bf16"), nullptr, context, prompts, options, progress);
  std::vector<GenerationRun> out;
  for (const CacheSpec& spec : specs) {
    GenerationRun run;
    run.texts = spec.method.quantized()
                    ? generate(model, spec, calibration, context, prompts, options, progress)
                    : bf16;
    GenerationResult& r = run.result;
    compare_texts(run.texts, bf16, options.ignore_eos ? std::vector<int32_t>{} : model.config().eos, r);
    r.method = spec.method_text();
    r.history_bits = PageLayout::of(spec, model.config().kv_shape()).history_bits();
    r.sink = spec.sink_tokens;
    r.recent = spec.recent_tokens;
    r.prefill = spec.prefill == PrefillPolicy::Exact ? "exact" : "windowed";
    if (on_run) on_run(run);
    out.push_back(std::move(run));
  }
  return out;
}

std::string to_json(const GenerationResult& r) {
  nlohmann::ordered_json j;
  j["judge"] = "generate";
  j["method"] = r.method;
  j["history_bits"] = r.history_bits;
  j["prompts"] = r.prompts;
  j["tokens"] = r.tokens;
  j["ended"] = r.ended;
  j["left_mean"] = r.left_mean;
  j["left_median"] = r.left_median;
  j["same"] = r.same;
  j["agree"] = r.agree;
  j["distinct_2"] = r.distinct_2;
  j["distinct_4"] = r.distinct_4;
  j["longest_loop"] = r.longest_loop;
  j["collapsed"] = r.collapsed;
  j["only_here"] = r.only_here;
  j["only_bf16"] = r.only_bf16;
  j["collapsed_p"] = r.collapsed_p;
  j["stuck"] = r.stuck;
  j["stuck_only_here"] = r.stuck_only_here;
  j["stuck_only_bf16"] = r.stuck_only_bf16;
  j["stuck_p"] = r.stuck_p;
  j["sink"] = r.sink;
  j["recent"] = r.recent;
  j["prefill"] = r.prefill;
  return j.dump();
}

std::string to_table(const std::vector<GenerationResult>& results) {
  size_t width = 6;
  for (const GenerationResult& r : results) width = std::max(width, r.method.size());
  std::string out = fmt::format(
      "{:<{}} {:>5} {:>7} {:>6} {:>9} {:>8} {:>6} {:>7} {:>10} {:>10} {:>8} {:>10} {:>9} {:>5} {:>6} {:>9} "
      "{:>5}\n",
      "method", width, "texts", "tokens", "ended", "left mean", "median", "same", "agree", "distinct 2",
      "distinct 4", "loop", "collapsed", "+ / -", "p", "stuck", "+ / -", "p");
  for (const GenerationResult& r : results)
    out += fmt::format(
        "{:<{}} {:>5} {:>7} {:>6} {:>9.1f} {:>8.1f} {:>6} {:>6.2f}% {:>10.4f} {:>10.4f} {:>8.1f} {:>10} "
        "{:>9} {:>5.2f} {:>6} {:>9} {:>5.2f}\n",
        r.method, width, r.prompts, r.tokens, r.ended, r.left_mean, r.left_median, r.same, 100 * r.agree,
        r.distinct_2, r.distinct_4, r.longest_loop, r.collapsed,
        fmt::format("{} / {}", r.only_here, r.only_bf16), r.collapsed_p, r.stuck,
        fmt::format("{} / {}", r.stuck_only_here, r.stuck_only_bf16), r.stuck_p);
  out +=
      "left: first token that differs from bf16's; loop: tokens of the longest loop, mean; collapsed: ends "
      "in a loop "
      "of\nperiod <= 64 over >= 256 tokens; stuck: its last 256 tokens hold <= 64 different runs of four, "
      "loops with "
      "mistakes, too;\n+ / -: here and not under bf16 / the other way round; p: chance alone splits these "
      "texts at least as unevenly (exact sign test)\n";
  return out;
}

}  // namespace kv2
