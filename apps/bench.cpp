// SPDX-License-Identifier: Apache-2.0
// kv2 bench: options, the table, and what the parts share.
#include "apps/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/log.h"

namespace kv2::app {
namespace {

const std::vector<std::string> kParts = {"limits", "attend",  "linear", "demote",
                                         "decode", "prefill", "batch",  "profile"};

void run(const BenchOptions& o) {
  catch_interrupts();
  BenchReport report(o.json);
  if (o.wants("limits")) bench_limits(o, report);
  if (o.wants("attend")) bench_attend(o, report);
  if (o.wants("linear")) bench_linear(o, report);
  if (o.wants("demote")) bench_demote(o, report);
  if (o.wants("decode") || o.wants("prefill") || o.wants("batch")) bench_model(o, report);
  if (o.wants("profile")) bench_profile(o, report);
}

std::string rate(double per_second, double limit) {
  if (per_second <= 0) return "";
  return limit > 0 ? fmt::format("{:.1f} ({:.0f} %)", per_second / 1e9, 100 * per_second / limit)
                   : fmt::format("{:.1f}", per_second / 1e9);
}

}  // namespace

bool BenchOptions::wants(const std::string& part) const {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

std::vector<CacheSpec> BenchOptions::specs() const {
  std::vector<CacheSpec> out;
  for (const std::string& text : split_methods(kv)) out.push_back(cache.spec(text));
  return out;
}

Times Times::of(std::vector<double> seconds) {
  KV2_CHECK(!seconds.empty());
  std::sort(seconds.begin(), seconds.end());
  return {std::move(seconds)};
}

Times time_of(int repeats, const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  run();
  std::vector<double> seconds;
  for (int i = 0; i < repeats; i++) {
    throw_if_interrupted();
    const auto start = Clock::now();
    run();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return Times::of(std::move(seconds));
}

double BenchLimits::read_for(double working_set) const {
  if (working_set <= double{1 << 20}) return read_l2;
  return working_set <= double{24 << 20} ? read_l3 : read_memory;
}

void BenchReport::add(const BenchRow& r) {
  const double t = r.times.median();
  if (json_) {
    nlohmann::ordered_json j = {{"part", r.part},
                                {"name", r.name},
                                {"median_s", t},
                                {"best_s", r.times.best()},
                                {"spread", r.times.spread()},
                                {"repeats", r.times.seconds.size()}};
    if (r.tokens > 0) j["tokens_per_s"] = r.tokens / t, j["best_tokens_per_s"] = r.tokens / r.times.best();
    if (r.bytes > 0) j["bytes"] = r.bytes, j["bytes_per_s"] = r.bytes / t;
    if (r.operations > 0) j["operations"] = r.operations, j["operations_per_s"] = r.operations / t;
    if (r.error >= 0) j["error"] = r.error;
    if (!r.check.empty()) j["check"] = r.check;
    fmt::print("{}\n", j.dump());
  } else {
    if (!any_)
      fmt::print("{:<9} {:<44} {:>10} {:>10} {:>7} {:>10} {:>16} {:>16}  {}\n", "part", "what", "median",
                 "best", "spread", "tokens/s", "GB/s (of limit)", "Gop/s (of int8)", "check");
    fmt::print("{:<9} {:<44} {:>8.3f}ms {:>8.3f}ms {:>6.0f}% {:>10} {:>16} {:>16}  {}\n", r.part, r.name,
               t * 1e3, r.times.best() * 1e3, 100 * r.times.spread(),
               r.tokens > 0 ? fmt::format("{:.1f}", r.tokens / t) : "",
               rate(r.bytes / t, limits.read_for(r.bytes)), rate(r.operations / t, limits.int8),
               r.error >= 0 ? fmt::format("{:.1e} {}", r.error, r.check) : r.check);
  }
  std::fflush(stdout);
  any_ = true;
}

void add_bench(CLI::App& program) {
  auto* app = program.add_subcommand("bench", "speed of this machine, of the kernels and of a model");
  auto o = std::make_shared<BenchOptions>();
  o->model.add_to(*app);
  o->cache.add_to(*app);
  o->parts = kParts;
  app->add_option("--parts", o->parts, "what to measure, several with commas")
      ->delimiter(',')
      ->check(CLI::IsMember(kParts))
      ->capture_default_str();
  add_kv_list(*app, o->kv, "bf16,quarot2");
  o->depths = {0, 2048, 4096, 7424};
  app->add_option("--depth", o->depths, "tokens before those that are timed")
      ->delimiter(',')
      ->capture_default_str();
  o->batches = {1, 8};
  app->add_option("--batch", o->batches, "sequences decoded at once, for `batch`")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--repeat", o->repeats, "times that each is measured")->check(CLI::Range(1, 1000));
  app->add_option("--steps", o->steps, "tokens of one measured decode")->check(CLI::Range(1, 1000));
  app->add_option("--prompt", o->prompt, "tokens of one measured prefill")->check(CLI::Range(1, 8192));
  app->add_flag("--json", o->json, "one JSON object per row");
  app->callback([o] { run(*o); });
}

}  // namespace kv2::app
