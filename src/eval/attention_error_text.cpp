// SPDX-License-Identifier: Apache-2.0
// AttentionErrorResult as JSON lines for programs and as a table for people.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "eval/attention_error.h"

namespace kv2 {
namespace {

std::string row(const std::string& label, const AttentionError& e) {
  return fmt::format(
      "{:<9} {:>7.3f} {:>8.4f} {:>8.4f} {:>8.4f} {:>8.4f} {:>8.5f} {:>8.4f} {:>8.4f} {:>8.4f} {:>8.4f} "
      "{:>8.4f}\n",
      label, e.mass(), e.mass_shift(), e.logit_rms(), e.logit(), e.weighted_logit(), e.attention_kl(),
      e.output(), e.output_k(), e.output_v(), e.key(), e.value());
}

}  // namespace

std::string to_json_lines(const AttentionErrorResult& r) {
  std::string out;
  for (int layer = 0; layer < r.n_layers; layer++)
    for (int h = 0; h < r.n_kv_heads; h++) {
      const AttentionError& e = r.head(layer, h);
      const nlohmann::ordered_json j = {{"judge", "attend"},
                                        {"method", r.method},
                                        {"history_bits", r.history_bits},
                                        {"sink", r.sink},
                                        {"recent", r.recent},
                                        {"tokens", r.tokens},
                                        {"layer", layer},
                                        {"kv_head", h},
                                        {"queries", e.queries},
                                        {"history_mass", e.mass()},
                                        {"mass_shift", e.mass_shift()},
                                        {"logit_rms", e.logit_rms()},
                                        {"logit", e.logit()},
                                        {"weighted_logit", e.weighted_logit()},
                                        {"attention_kl", e.attention_kl()},
                                        {"output", e.output()},
                                        {"output_k", e.output_k()},
                                        {"output_v", e.output_v()},
                                        {"key", e.key()},
                                        {"value", e.value()}};
      out += j.dump() + "\n";
    }
  return out;
}

std::string to_table(const AttentionErrorResult& r, AttentionRows rows) {
  std::string out = fmt::format("{}, {:.4g} history bits, {} tokens\n", r.method, r.history_bits, r.tokens);
  out +=
      fmt::format("{:<9} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n", "layer",
                  "mass", "shift", "logit", "rel.", "by S", "KL", "output", "K alone", "V alone", "K", "V");
  for (int layer = 0; layer < r.n_layers; layer++) {
    if (rows == AttentionRows::Layers) {
      out += row(fmt::format("{}", layer), r.layer(layer));
      continue;
    }
    for (int h = 0; h < r.n_kv_heads; h++) out += row(fmt::format("{}.{}", layer, h), r.head(layer, h));
  }
  out += row("all", r.all());
  out +=
      "mass: share of attention on codes; shift: ln of its odds, stored over exact; logit: rms error in "
      "nats, relative to the query's spread, and "
      "weighted "
      "by attention; KL of the weights;\noutput: relative rms error of the attention output, also with keys "
      "or values alone in codes; K under C_Q and V under W_o'W_o: relative rms\n";
  return out;
}

}  // namespace kv2
