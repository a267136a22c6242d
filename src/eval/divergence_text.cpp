// SPDX-License-Identifier: Apache-2.0
// DivergenceResult as JSON for programs and as a table for people.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "eval/divergence.h"

namespace kv2 {

namespace {

std::string error(double standard_error, int digits) {
  return std::isnan(standard_error) ? "?" : fmt::format("{:.{}f}", standard_error, digits);
}

}  // namespace

std::string to_json(const DivergenceResult& r) {
  nlohmann::ordered_json j;
  j["judge"] = "kld";
  j["method"] = r.method;
  j["history_bits"] = r.history_bits;
  j["all_in_bits"] = r.all_in_bits;
  j["kv_bytes"] = r.kv_bytes;
  j["tokens"] = r.tokens;
  j["ppl"] = r.ppl;
  j["kl_mean"] = r.kl_mean;
  j["kl_median"] = r.kl_median;
  j["kl_p99"] = r.kl_p99;
  j["kl_max"] = r.kl_max;
  j["top1"] = r.top1;
  j["kl_tokens"] = r.kl_tokens;
  j["windows"] = r.windows;
  j["sink"] = r.sink;
  j["recent"] = r.recent;
  j["prefill"] = r.prefill;
  j["flips"] = r.flips;
  j["stride"] = r.stride;
  j["buckets"] = nlohmann::ordered_json::array();
  for (const DivergenceBucket& b : r.buckets)
    j["buckets"].push_back({{"begin", b.begin},
                            {"end", b.end},
                            {"tokens", b.tokens},
                            {"flips", b.flips},
                            {"kl_mean", b.kl_mean},
                            {"kl_max", b.kl_max}});
  j["kl_se"] = r.kl_se;  // null where it is NaN, as the other errors are
  j["top1_se"] = r.top1_se;
  if (!r.rival.empty())
    j["rival"] = {
        {"method", r.rival}, {"kl_difference", r.over_rival.difference}, {"se", r.over_rival.standard_error}};
  j["kl_blocks"] = r.kl_blocks;
  return j.dump();
}

std::string to_table(const std::vector<DivergenceResult>& results) {
  size_t width = 6;
  for (const DivergenceResult& r : results) width = std::max(width, r.method.size());
  std::string out = fmt::format("{:<{}} {:>12} {:>11} {:>10} {:>9} {:>18} {:>9} {:>9} {:>9} {:>14}\n",
                                "method", width, "history bits", "all-in bits", "KV bytes", "ppl",
                                "KL mean +- se", "median", "p99", "max", "top-1 +- se");
  for (const DivergenceResult& r : results)
    out += fmt::format(
        "{:<{}} {:>12.4g} {:>11.4g} {:>10} {:>9.4f} {:>9.5f} {:>8} {:>9.5f} {:>9.4f} {:>9.4f} {:>6.2f}% "
        "{:>6}\n",
        r.method, width, r.history_bits, r.all_in_bits, r.kv_bytes, r.ppl, r.kl_mean, error(r.kl_se, 5),
        r.kl_median, r.kl_p99, r.kl_max, 100 * r.top1, error(100 * r.top1_se, 2));
  if (!results.empty()) {
    const DivergenceResult& r = results.front();
    out +=
        fmt::format("KL(bf16 || method) in nats over {} positions with a history, ppl over {}, {} window{}",
                    r.kl_tokens, r.tokens, r.windows, r.windows == 1 ? "" : "s");
    out += r.windows > 1 ? fmt::format(", one every {} tokens\n", r.stride) : "\n";
    out += fmt::format("se: standard error from runs of {} positions{}\n", kBlockPositions,
                       r.kl_blocks.size() < 2 ? " (there is one)" : "");
  }
  return out;
}

std::string to_bucket_table(const std::vector<DivergenceResult>& results) {
  if (results.empty() || results.front().buckets.size() < 2) return "";  // the other table says it all
  size_t width = 6;
  for (const DivergenceResult& r : results) width = std::max(width, r.method.size());
  std::string out = fmt::format("\nKL mean and flips by position\n{:<{}}", "method", width);
  for (const DivergenceBucket& b : results.front().buckets)
    out += fmt::format(" {:>17}", fmt::format("{}-{}", b.begin, b.end - 1));
  out += "\n";
  for (const DivergenceResult& r : results) {
    out += fmt::format("{:<{}}", r.method, width);
    for (const DivergenceBucket& b : r.buckets)
      out += fmt::format(" {:>9.5f} {:>6.2f}%", b.kl_mean,
                         100.0 * static_cast<double>(b.flips) / static_cast<double>(b.tokens));
    out += "\n";
  }
  return out;
}

std::string to_rival_table(const std::vector<DivergenceResult>& results) {
  size_t width = 6;
  std::string rows;
  for (const DivergenceResult& r : results) width = std::max(width, r.method.size());
  for (const DivergenceResult& r : results)
    if (!r.rival.empty())
      rows += fmt::format("{:<{}} {:<{}} {:>+9.5f} {:>8}\n", r.method, width, r.rival, width,
                          r.over_rival.difference, error(r.over_rival.standard_error, 5));
  if (rows.empty()) return "";
  return fmt::format(
             "\nKL beside the best other method of as many history bits or fewer, position by position\n"
             "{:<{}} {:<{}} {:>18}\n",
             "method", width, "best other", width, "difference +- se") +
         rows;
}

}  // namespace kv2
