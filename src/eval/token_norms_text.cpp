// SPDX-License-Identifier: Apache-2.0
// TokenNormResult as JSON lines for programs and as tables for people.
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "eval/token_norms.h"

namespace kv2 {

std::string to_json_lines(const TokenNormResult& r) {
  std::string out;
  for (const NormSummary& n : r.norms) {
    nlohmann::ordered_json j = {{"judge", "norms"},
                                {"tensor", std::string(1, n.tensor)},
                                {"layer", n.layer},
                                {"tokens", r.tokens},
                                {"min", n.min},
                                {"p1", n.p1},
                                {"median", n.median},
                                {"p99", n.p99},
                                {"max", n.max},
                                {"ratio", n.ratio()},
                                {"variation", n.variation},
                                {"head_ratio", n.head_ratio},
                                {"first", n.first}};
    for (const char* key : {"page_min", "page_mean", "page_max"}) j[key] = nlohmann::ordered_json::array();
    for (const NormSummary::Page& p : n.pages) {
      j["page_min"].push_back(p.min);
      j["page_mean"].push_back(p.mean);
      j["page_max"].push_back(p.max);
    }
    out += j.dump() + "\n";
  }
  for (const KeyStage& s : r.stages) {
    const nlohmann::ordered_json j = {
        {"judge", "norm-stages"}, {"transform", s.transform}, {"scaled", s.scaled},
        {"layer", s.layer},       {"group", r.options.group}, {"skip", r.options.skip_tokens},
        {"ratio", s.ratio},       {"bound", s.bound},         {"uniform", s.uniform},
        {"measured", s.measured}, {"per_token", s.per_token}};
    out += j.dump() + "\n";
  }
  return out;
}

std::string to_table(const TokenNormResult& r) {
  std::string out =
      fmt::format("{:<6} {:<6} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7}   {}\n", "layer", "tensor", "min",
                  "1 %", "median", "99 %", "max", "max/min", "std", "first tokens");
  for (const NormSummary& n : r.norms) {
    out += fmt::format("{:<6} {:<6} {:>8.4g} {:>8.4g} {:>8.4g} {:>8.4g} {:>8.4g} {:>8.2f} {:>6.1f}%  ",
                       n.layer, n.tensor, n.min, n.p1, n.median, n.p99, n.max, n.ratio(), 100 * n.variation);
    for (size_t i = 0; i < std::min<size_t>(4, n.first.size()); i++)
      out += fmt::format(" {:.3g}", n.first[i]);
    out += "\n";
  }
  struct Mean {
    KeyStage sum;
    int n = 0;
  };
  std::vector<std::string> order;
  std::map<std::string, Mean> means;
  for (const KeyStage& s : r.stages) {
    const std::string name = s.transform + (s.scaled ? " + token scaling" : "");
    if (!means.contains(name)) order.push_back(name);
    Mean& m = means[name];
    m.n++;
    m.sum.ratio += s.ratio, m.sum.bound += s.bound, m.sum.uniform += s.uniform;
    m.sum.measured += s.measured, m.sum.per_token += s.per_token;
  }
  out += fmt::format("\nkeys, 2 bits per channel over {} tokens, behind {} tokens; mean over layers\n",
                     r.options.group, r.options.skip_tokens);
  out += fmt::format("{:<28} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "basis", "max/min", "bound", "step²/12",
                     "error", "per token");
  for (const std::string& name : order) {
    const Mean& m = means[name];
    const double n = m.n;
    out += fmt::format("{:<28} {:>9.3f} {:>9.5f} {:>9.5f} {:>9.5f} {:>9.5f}\n", name, m.sum.ratio / n,
                       m.sum.bound / n, m.sum.uniform / n, m.sum.measured / n, m.sum.per_token / n);
  }
  out +=
      "norm of a token: root mean square over heads; errors are energies relative to those of the keys, "
      "per token: every token counts the same\n";
  return out;
}

}  // namespace kv2
