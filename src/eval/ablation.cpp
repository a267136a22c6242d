// SPDX-License-Identifier: Apache-2.0
#include "eval/ablation.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace kv2 {
namespace {

struct Row {
  std::string label;
  CacheSpec spec;
};
struct Table {
  std::string title, text;
  std::vector<Row> rows;
};

CacheSpec method(const char* text) {
  return CacheSpec::parse(text);
}

CacheSpec windows(int sink, int recent) {
  CacheSpec spec = method("oscar2");
  spec.sink_tokens = sink;
  spec.recent_tokens = recent;
  return spec;
}

Table recipes(const char* title, const char* text, bool clip, int group) {
  const std::optional<float> ratio = clip ? std::nullopt : std::optional(1.0f);
  const auto row = [&](const char* label, const char* base, RotationRecipe recipe) {
    CacheSpec spec = method(base);
    spec.method.clip_k = spec.method.clip_v = ratio;
    spec.method.k.group = spec.method.v.group = group;
    spec.method.recipe = recipe;
    return Row{label, spec};
  };
  Table out{title, text, {}};
  if (group == 0) out.rows.push_back(row("none", "naive2", RotationRecipe::UHP));
  out.rows.push_back(row("U", "oscar2", RotationRecipe::U));
  out.rows.push_back(row("H", "quarot2", RotationRecipe::UHP));
  out.rows.push_back(row("U·H", "oscar2", RotationRecipe::UH));
  out.rows.push_back(row("U·H·P", "oscar2", RotationRecipe::UHP));
  return out;
}

std::vector<Table> windowed_tables(const KvShape& shape) {
  const auto target = [](ValueTarget t) {
    CacheSpec spec = method("oscar2");
    spec.method.value_target = t;
    return spec;
  };
  CacheSpec by_layer = method("oscar2");
  by_layer.method.sharing = RotationSharing::Layer;
  return {
      {"Methods",
       "",
       {{"bf16", method("bf16")},
        {"naive2", method("naive2")},
        {"quarot2", method("quarot2")},
        {"oscar2", method("oscar2")}}},
      {"Windows",
       "oscar2; sink and recent tokens kept in bf16.",
       {{"0 / 0", windows(0, 0)},
        {"64 / 0", windows(64, 0)},
        {"0 / 256", windows(0, 256)},
        {"64 / 256", windows(64, 256)}}},
      recipes("Rotation, clips searched", "The clips are those that the search found for U·H·P.", true, 0),
      recipes("Rotation, no clip", "", false, 0),
      recipes("Rotation, groups of head_dim/2, clips searched",
              "With one group per vector P changes nothing but the order of channels inside it; here it "
              "decides which "
              "channels share a scale.",
              true, shape.head_dim / 2),
      {"Sharing",
       "One rotation per KV head, or one per layer.",
       {{"per head", method("oscar2")}, {"per layer", by_layer}}},
      {"Value target",
       "What the rotation of V is fitted from.",
       {{"attention output, (1/N) VᵀSᵀSV", target(ValueTarget::AttentionOutput)},
        {"energy-weighted, Vᵀ diag(w) V", target(ValueTarget::EnergyWeighted)},
        {"self-covariance, VᵀV", target(ValueTarget::SelfCovariance)}}},
      {"Clips",
       "K / V; the search chooses per layer.",
       {{"off", method("oscar2:clip-k=1,clip-v=1")},
        {"0.96 / 0.92 (published)", method("oscar2:clip-k=0.96,clip-v=0.92")},
        {"0.88 / 0.88", method("oscar2:clip-k=0.88,clip-v=0.88")},
        {"search", method("oscar2")}}},
  };
}

/// Identity of a measurement; equal rows of different tables are measured once.
std::string key_of(const CacheSpec& s) {
  return fmt::format("{}|{}|{}|{}", s.method_text(), s.sink_tokens, s.recent_tokens,
                     static_cast<int>(s.prefill));
}

std::string markdown(const Table& table,
                     const std::function<const DivergenceResult&(const CacheSpec&)>& result_of) {
  std::string out = fmt::format("## {}\n\n", table.title);
  if (!table.text.empty()) out += table.text + "\n\n";
  out +=
      "| | history bits | KL mean | median | p99 | top-1 equal | perplexity "
      "|\n|---|---|---|---|---|---|---|\n";
  for (const Row& row : table.rows) {
    const DivergenceResult& r = result_of(row.spec);
    out += fmt::format("| {} | {:.4g} | {:.4f} | {:.4f} | {:.3f} | {:.1f} % | {:.3f} |\n", row.label,
                       r.history_bits, r.kl_mean, r.kl_median, r.kl_p99, 100 * r.top1, r.ppl);
  }
  return out + "\n";
}

std::string measure_tables(Model& model, const std::vector<int32_t>& tokens, const Calibration& calibration,
                           const DivergenceOptions& options, const std::vector<Table>& tables,
                           std::vector<DivergenceResult>& results) {
  std::vector<CacheSpec> specs;
  std::vector<std::string> keys;
  for (const Table& t : tables)
    for (const Row& row : t.rows)
      if (std::find(keys.begin(), keys.end(), key_of(row.spec)) == keys.end()) {
        keys.push_back(key_of(row.spec));
        specs.push_back(row.spec);
      }
  results = measure_divergence(model, tokens, specs, &calibration, options);
  const auto result_of = [&](const CacheSpec& spec) -> const DivergenceResult& {
    const auto at = std::find(keys.begin(), keys.end(), key_of(spec));
    KV2_CHECK(at != keys.end());
    return results[static_cast<size_t>(at - keys.begin())];
  };
  std::string out;
  for (const Table& t : tables) out += markdown(t, result_of);
  return out;
}

std::string order_of_methods(
    const std::vector<DivergenceResult>& r) {  // bf16, naive2, quarot2, oscar2 come first
  const bool holds = r[3].kl_mean < r[2].kl_mean && r[2].kl_mean < r[1].kl_mean;
  return fmt::format(
      "Mean KL at equal bits: oscar2 {:.4f}, quarot2 {:.4f}, naive2 {:.4f}: the order oscar2 < quarot2 < "
      "naive2 {}.\n\n",
      r[3].kl_mean, r[2].kl_mean, r[1].kl_mean, holds ? "holds" : "does not hold");
}

std::string calibration_line(const Calibration& c) {
  const auto note = [&](const char* key) {
    const auto at = c.notes.find(key);
    return at == c.notes.end() ? std::string("unknown") : at->second;
  };
  double k = 0, v = 0;
  for (const LayerCalibration& l : c.layers) k += l.clip_k, v += l.clip_v;
  const double n = static_cast<double>(c.layers.size());
  return fmt::format(
      "Calibration: {} tokens ({}), {} held out for the clips, windows of {}; mean clip ratio K {:.3f}, "
      "V {:.3f}.\n",
      c.n_tokens, note("source"), note("held_out"), note("window"), k / n, v / n);
}

}  // namespace

std::string ablation_report(Model& model, const std::vector<int32_t>& tokens, const Calibration& calibration,
                            const DivergenceOptions& options, const std::string& command) {
  const ModelConfig& config = model.config();
  std::vector<DivergenceResult> results;
  const std::string windowed =
      measure_tables(model, tokens, calibration, options, windowed_tables(config.kv_shape()), results);
  const DivergenceResult& first = results.front();
  std::string out = fmt::format(
      "# What each part of oscar2 is worth\n\n```\n{}\n```\n\nModel: {} ({} layers, {} KV heads, "
      "head_dim {}), "
      "fingerprint `{}`; {}.\n{}KL is KL(bf16 ‖ method) in nats over {} positions where every row's history "
      "is not "
      "empty, perplexity over {} positions, {} window(s). Sink 64 and recent 256 tokens unless said "
      "otherwise.\n\n",
      command, config.name.empty() ? name_of(config.architecture) : config.name, config.n_layers,
      config.n_kv_heads, config.head_dim, model.fingerprint(), model.backend().describe(),
      calibration_line(calibration), first.kl_tokens, first.tokens, first.windows);
  out += order_of_methods(results) + windowed;

  CacheSpec exact = method("oscar2");
  exact.prefill = PrefillPolicy::Exact;
  const Table prefill{
      "Prefill",
      "The first half of each window is the prompt; positions behind it are scored. `exact` reads the "
      "prompt in bf16 while it is a prompt.",
      {{"windowed", method("oscar2")}, {"exact", exact}}};
  return out + measure_tables(model, tokens, calibration, options, {prefill}, results);
}

}  // namespace kv2
