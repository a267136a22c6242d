// SPDX-License-Identifier: Apache-2.0
// RulerResult as JSON for programs and as a table for people.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "eval/ruler.h"

namespace kv2 {
namespace {

/// "97.3 / 98.2": exact and substring, where it was measured.
std::string cell(const RulerResult& r) {
  std::string out = fmt::format("{:.1f}", 100 * r.exact);
  if (r.substring >= 0) out += fmt::format(" / {:.1f}", 100 * r.substring);
  return out;
}

}  // namespace

std::string to_json(const RulerResult& r) {
  nlohmann::ordered_json j;
  j["judge"] = "ruler";
  r.add_to(j);
  j["all_in_bits"] = r.all_in_bits;
  j["haystacks"] = r.haystacks;
  j["needles"] = r.needles;
  return j.dump();
}

std::string to_table(const std::vector<RulerResult>& results) {
  std::vector<std::string> methods;
  size_t task_width = 4, width = 13;
  for (const RulerResult& r : results) {
    if (std::find(methods.begin(), methods.end(), r.method) == methods.end()) methods.push_back(r.method);
    task_width = std::max(task_width, r.task.size());
    width = std::max(width, r.method.size());
  }
  std::string out = fmt::format("{:<{}} {:>7} {:>9}", "task", task_width, "length", "questions");
  for (const std::string& m : methods) out += fmt::format("  {:>{}}", m, width);
  for (size_t i = 0; i < results.size(); i++) {
    const RulerResult& r = results[i];
    if (i % methods.size() == 0)
      out += fmt::format("\n{:<{}} {:>7} {:>9}", r.task, task_width, r.length_text(), r.questions);
    out += fmt::format("  {:>{}}", cell(r), width);
  }
  const bool substring =
      std::any_of(results.begin(), results.end(), [](const RulerResult& r) { return r.substring >= 0; });
  out +=
      fmt::format("\n{} in percent. exact: every answer token is the arg max after the tokens before it{}\n",
                  substring ? "exact / substring" : "exact",
                  substring ? "; substring: values found in generated text" : "");
  const bool beyond =
      std::any_of(results.begin(), results.end(), [](const RulerResult& r) { return r.beyond_context; });
  return out + star_note(beyond, results.empty() ? 0 : results.front().context);
}

}  // namespace kv2
