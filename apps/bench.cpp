// SPDX-License-Identifier: Apache-2.0
// kv2 bench: options, the table, and what the parts share.
#include "apps/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/log.h"
#include "base/memory.h"
#include "ops/device_extras.h"

namespace kv2::app {
namespace {

const std::vector<std::string> kParts = {"limits", "attend",  "linear", "demote",
                                         "decode", "prefill", "batch",  "profile"};

const std::vector<std::string> kModelParts = {"decode", "prefill", "batch", "profile"};

bool is_in(const std::vector<std::string>& list, const std::string& x) {
  return std::find(list.begin(), list.end(), x) != list.end();
}

/// Words that name parts, and one other at most: the model. No part: all that can be measured.
void read_words(BenchOptions& o) {
  for (const std::string& word : o.words) {
    std::error_code ec;
    if (is_in(kParts, word))
      o.parts.push_back(word);
    else if (word.find_first_of("/.:") == std::string::npos && !std::filesystem::exists(word, ec))
      throw_error(ErrorCode::BadArgument, "'{}' is neither a part of the bench ({}) nor a model's file", word,
                  fmt::join(kParts, ", "));
    else if (o.model.model.empty())
      o.model.model = word;
    else
      throw_error(ErrorCode::BadArgument, "'{}' is no part of the bench ({}), and the model is {}", word,
                  fmt::join(kParts, ", "), o.model.model);
  }
  if (o.parts.empty())
    for (const std::string& part : kParts)
      if (!o.model.model.empty() || !is_in(kModelParts, part)) o.parts.push_back(part);
  if (o.model.model.empty())
    for (const std::string& part : o.parts)
      if (is_in(kModelParts, part))
        throw_error(ErrorCode::BadArgument, "{} is measured on a model: kv2 bench {} MODEL", part, part);
}

/// An option that no part of this call looks at would be ignored.
void require_used(const BenchOptions& o) {
  const auto check = [&](bool given, const char* option, const std::vector<std::string>& users) {
    const bool used = std::any_of(users.begin(), users.end(), [&](auto& part) { return o.wants(part); });
    if (given && !used)
      throw_error(ErrorCode::BadArgument, "{} is for {}; this call measures {}", option,
                  fmt::join(users, ", "), fmt::join(o.parts, ", "));
  };
  check(!o.kv.empty(), "--kv", {"attend", "decode", "prefill", "batch", "profile"});
  check(!o.depths.empty(), "--depth", {"attend", "decode", "prefill", "batch", "profile"});
  check(!o.batches.empty(), "--batch", {"attend", "batch", "profile"});
  check(!o.rows.empty(), "--rows", {"attend"});
  check(o.absorb, "--absorb", {"decode", "prefill", "batch", "profile"});
}

void run(BenchOptions o) {
  catch_interrupts();
  read_words(o);
  require_used(o);
  if (!o.model.model.empty()) require_room(o);  // before anything is loaded or measured
  BenchReport report(o.json);
  const bool kernels = o.wants("attend") || o.wants("linear") || o.wants("demote");
  if (o.wants("limits") || (kernels && o.model.device != "cpu"))  // a moment there, and every row's measure
    bench_limits(o, report);
  if (o.wants("attend")) bench_attend(o, report);
  if (o.wants("linear")) bench_linear(o, report);
  if (o.wants("demote")) bench_demote(o, report);
  if (o.wants("decode") || o.wants("prefill") || o.wants("batch")) bench_model(o, report);
  if (o.wants("profile")) bench_profile(o, report);
}

/// What a second brought, in units of 10⁹, and the share of a row's `least` seconds in those that it took.
std::string rate(double count, double seconds, double least) {
  if (count <= 0) return "";
  return fmt::format("{:.1f}{}", count / seconds / 1e9,
                     least > 0 ? fmt::format(" ({:.0f} %)", 100 * least / seconds) : "");
}

double seconds_for(double count, double per_second) {
  return count > 0 && per_second > 0 ? count / per_second : 0;
}

}  // namespace

bool BenchOptions::wants(const std::string& part) const {
  return is_in(parts, part);
}

std::vector<CacheSpec> BenchOptions::specs(const std::string& defaults) const {
  return cache.specs(kv.empty() ? std::vector{defaults} : kv);
}

std::vector<BenchShape> bench_shapes(const BenchOptions& o) {
  std::vector<BenchShape> shapes = {{"SmolLM2-135M", {30, 9, 3, 64}, 576, 1536, 49152, {8192}},
                                    {"needle-15m", {4, 8, 2, 128}, 512, 1536, 4096, {65536}}};
  if (o.model.model.empty() && o.model.device.starts_with("cuda"))
    shapes = {{"Qwen3-8B", {36, 32, 8, 128}, 4096, 12288, 151936, {8192, 32768, 131072}}};
  if (!o.model.model.empty()) {
    const ModelConfig c = read_config(*open_model_file(o.model.model));
    shapes = {{"the model", c.kv_shape(), c.hidden, c.intermediate, c.vocab, {0, 2048, 4096, 7424}}};
  }
  if (!o.depths.empty())
    for (BenchShape& s : shapes) s.depths = o.depths;
  return shapes;
}

Times Times::of(std::vector<double> seconds) {
  KV2_CHECK(!seconds.empty());
  std::sort(seconds.begin(), seconds.end());
  Times times;
  times.seconds = std::move(seconds);
  return times;
}

Times time_of(int repeats, const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  run();
  std::vector<double> seconds;
  double all = 0;
  const std::clock_t cpu = std::clock();
  for (int i = 0; i < repeats; i++) {
    throw_if_interrupted();
    const auto start = Clock::now();
    run();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    all += seconds.back();
  }
  Times times = Times::of(std::move(seconds));
  times.cores = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC / all;
  return times;
}

Times time_on(Backend& backend, int repeats, const std::function<void()>& ops) {
  auto* clock = dynamic_cast<DeviceClock*>(&backend);
  if (!clock)
    return time_of(repeats, [&] {
      ops();
      backend.sync();
    });
  std::vector<double> seconds;
  for (int i = 0; i < repeats + 2; i++) {
    throw_if_interrupted();
    const double t = clock->cold_seconds(ops);
    if (i >= 2) seconds.push_back(t);  // warm: buffers grown, clocks up
  }
  return Times::of(std::move(seconds));
}

Bound BenchLimits::of(const BenchRow& row) const {
  Bound bound;
  for (const Level& l : levels) {
    if (row.bytes > l.holds) continue;
    bound.level = l.name;
    bound.reading = seconds_for(row.bytes, l.read);
    break;
  }
  bound.arithmetic = seconds_for(row.operations.int8, peak.int8) +
                     seconds_for(row.operations.bf16, peak.bf16) + seconds_for(row.operations.f32, peak.f32);
  return bound;
}

void BenchReport::add(const BenchRow& r) {
  const double t = r.times.median();
  const Bound bound = limits.of(r);
  if (json_) {
    nlohmann::ordered_json j = {{"part", r.part},
                                {"name", r.name},
                                {"median_s", t},
                                {"best_s", r.times.best()},
                                {"spread", r.times.spread()},
                                {"repeats", r.times.seconds.size()}};
    if (!r.kv.empty()) j["kv"] = r.kv;
    for (const auto& [name, n] : r.shape) j[name] = n;
    if (r.tokens > 0) j["tokens_per_s"] = r.tokens / t, j["best_tokens_per_s"] = r.tokens / r.times.best();
    if (r.bytes > 0) j["bytes"] = r.bytes, j["bytes_per_s"] = r.bytes / t, j["level"] = bound.level;
    if (const double all = r.operations.total(); all > 0) {
      j["operations"] = all, j["operations_per_s"] = all / t;
      for (const auto& [name, n] :
           {std::pair{"int8", r.operations.int8}, {"bf16", r.operations.bf16}, {"f32", r.operations.f32}})
        if (n > 0) j[fmt::format("operations_{}", name)] = n;
    }
    if (r.times.cores > 0) j["cores"] = r.times.cores;
    if (r.error >= 0) j["error"] = r.error;
    if (!r.check.empty()) j["check"] = r.check;
    fmt::print("{}\n", j.dump());
  } else {
    if (!any_)
      fmt::print("{:<8} {:<44} {:>10} {:>10} {:>7} {:>5} {:>9} {:>16} {:>16} {:<11} {}\n", "part", "what",
                 "median", "best", "spread", "cores", "tokens/s", "GB/s (of limit)", "Gop/s (of limit)",
                 "limited by", "check");
    fmt::print("{:<8} {:<44} {:>8.3f}ms {:>8.3f}ms {:>6.0f}% {:>5} {:>9} {:>16} {:>16} {:<11} {}\n", r.part,
               r.name, t * 1e3, r.times.best() * 1e3, 100 * r.times.spread(),
               r.times.cores > 0 ? fmt::format("{:.1f}", r.times.cores) : "",
               r.tokens > 0 ? fmt::format("{:.1f}", r.tokens / t) : "", rate(r.bytes, t, bound.reading),
               rate(r.operations.total(), t, bound.arithmetic), bound.seconds() > 0 ? bound.what() : "",
               r.error >= 0 ? fmt::format("{:.1e} {}", r.error, r.check) : r.check);
  }
  std::fflush(stdout);
  any_ = true;
}

void BenchReport::add_memory(const MemoryRow& r) {
  if (json_)
    fmt::print("{}\n", nlohmann::ordered_json{{"part", "memory"},
                                              {"name", r.name},
                                              {"resident", r.resident},
                                              {"weights", r.weights},
                                              {"kv", r.kv},
                                              {"kv_tokens", r.kv_tokens}}
                           .dump());
  else
    fmt::print(
        "{:<8} {:<44} {} resident = {} of weights + {} of KV as planned ({} of it tokens, the rest a chunk's "
        "pages and the method's matrices) + {}\n",
        "memory", r.name, format_bytes(r.resident), format_bytes(r.weights), format_bytes(r.kv),
        format_bytes(r.kv_tokens), format_bytes(r.resident - r.weights - r.kv));
  std::fflush(stdout);
}

void add_bench(CLI::App& program) {
  auto* app = program.add_subcommand("bench", "speed of this machine, of the kernels and of a model");
  auto o = std::make_shared<BenchOptions>();
  app->add_option(
      "what", o->words,
      fmt::format("parts to measure ({}; default: all) and the model, if any", fmt::join(kParts, ", ")));
  app->add_option("--model", o->model.model, "the model: decode, prefill, batch and profile need one");
  o->model.add_device_to(*app);
  o->cache.add_to(*app);
  add_kv_list(*app, o->kv, "");
  o->kv.clear();
  app->add_option(
         "--depth", o->depths,
         "tokens before those that are timed (default: 0,2048,4096,7424; attend without a model: 8192 and "
         "65536)")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 26));
  app->add_option("--batch", o->batches,
                  "sequences at once (default of batch and profile: 1,8, of attend: 1)")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  app->add_option(
         "--rows", o->rows,
         "queries of a sequence in attend, its last ones: 1 for decode, more for a chunk of a prompt "
         "(default: 1; attend on a GPU without --depth, --batch and --rows: a list of its own)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--repeat", o->repeats, "times that each is measured")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--steps", o->steps, "tokens of one measured decode")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--prompt", o->prompt, "tokens of one measured prefill")
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
  app->add_flag(
      "--random-cache", o->random_cache,
      "begin at a depth with random keys and values instead of a prompt, each sequence with pages of "
      "its own");
  add_absorb(*app, o->absorb);
  app->add_flag("--json", o->json, "one JSON object per row");
  app->callback([o] { run(*o); });
}

}  // namespace kv2::app
