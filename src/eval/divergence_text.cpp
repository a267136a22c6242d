// SPDX-License-Identifier: Apache-2.0
// DivergenceResult as JSON for programs and as a table for people.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "eval/divergence.h"

namespace kv2 {

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
  return j.dump();
}

std::string to_table(const std::vector<DivergenceResult>& results) {
  size_t width = 6;
  for (const DivergenceResult& r : results) width = std::max(width, r.method.size());
  std::string out = fmt::format("{:<{}} {:>12} {:>11} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7}\n", "method",
                                width, "history bits", "all-in bits", "KV bytes", "ppl", "KL mean", "median",
                                "p99", "max", "top-1");
  for (const DivergenceResult& r : results)
    out += fmt::format(
        "{:<{}} {:>12.4g} {:>11.4g} {:>10} {:>9.4f} {:>9.5f} {:>9.5f} {:>9.4f} {:>9.4f} {:>6.2f}%\n",
        r.method, width, r.history_bits, r.all_in_bits, r.kv_bytes, r.ppl, r.kl_mean, r.kl_median, r.kl_p99,
        r.kl_max, 100 * r.top1);
  if (!results.empty()) {
    const DivergenceResult& r = results.front();
    out +=
        fmt::format("KL(bf16 || method) in nats over {} positions with a history, ppl over {}, {} window{}",
                    r.kl_tokens, r.tokens, r.windows, r.windows == 1 ? "" : "s");
    out += r.windows > 1 ? fmt::format(", one every {} tokens\n", r.stride) : "\n";
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

}  // namespace kv2
