// SPDX-License-Identifier: Apache-2.0
// What happens inside: errors of attention by layer and head, token norms, stages of the omni recipe.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "eval/html_table.h"
#include "eval/report_sections.h"

namespace kv2 {
namespace {

/// Root mean square (or mean, for a divergence) over the KV heads of a layer: one series per method.
std::vector<Series> by_layer(const std::vector<Json>& lines, const char* key, bool squares) {
  std::vector<Series> out;
  for (const std::string& method : distinct(lines, method_label)) {
    std::map<int, std::pair<double, int>> sums;
    for (const Json& line : lines) {
      if (method_label(line) != method) continue;
      auto& [sum, n] = sums[line.at("layer").get<int>()];
      const double x = line.at(key).get<double>();
      sum += squares ? x * x : x;
      n++;
    }
    Series s{.name = method, .points = {}};
    for (const auto& [layer, sum] : sums) {
      const double mean = sum.first / sum.second;
      s.points.emplace_back(layer, squares ? std::sqrt(mean) : mean);
    }
    out.push_back(std::move(s));
  }
  return out;
}

std::string head_map(const std::vector<Json>& lines, const std::string& method, const char* key,
                     double full) {
  int n_layers = 0, n_heads = 0;
  for (const Json& line : lines) {
    n_layers = std::max(n_layers, line.at("layer").get<int>() + 1);
    n_heads = std::max(n_heads, line.at("kv_head").get<int>() + 1);
  }
  if (n_layers > 512 || n_heads > 512) return "";
  HeatMap map{
      .row_label = "KV head", .column_label = "layer", .rows = {}, .columns = {}, .values = {}, .full = full};
  map.values.assign(static_cast<size_t>(n_layers) * n_heads, std::numeric_limits<double>::quiet_NaN());
  for (int h = 0; h < n_heads; h++) map.rows.push_back(fmt::format("{}", h));
  for (int l = 0; l < n_layers; l++) map.columns.push_back(fmt::format("{}", l));
  for (const Json& line : lines)
    if (method_label(line) == method && line.at("layer").get<int>() >= 0 &&
        line.at("kv_head").get<int>() >= 0)
      map.values[static_cast<size_t>(line.at("kv_head").get<int>()) * n_layers +
                 line.at("layer").get<int>()] = std::round(line.at(key).get<double>() * 1000) / 1000;
  return heat_map(map);
}

std::string heading(const char* title, const std::string& plot) {
  return plot.empty() ? "" : fmt::format("<h3>{}</h3>\n{}", title, plot);
}

/// First two tokens and range of K and V norms, layer by layer.
std::string norm_table(const std::vector<Json>& lines) {
  HtmlTable out(
      {"tensor", "layer", "min", "1 %", "median", "99 %", "max", "max / min", "first token", "second"});
  for (const char* tensor : {"k", "v", "q"})
    for (const Json& line : lines) {
      if (line.at("tensor") != tensor) continue;
      std::vector<std::string> row = {tensor, fmt::format("{}", line.at("layer").get<int>())};
      for (const char* key : {"min", "p1", "median", "p99", "max", "ratio"})
        row.push_back(readable(line.at(key).get<double>()));
      for (size_t i = 0; i < 2; i++)
        row.push_back(line["first"].size() > i ? readable(line["first"][i].get<double>()) : "–");
      out.add(row);
    }
  return "<details><summary>all layers</summary>\n" + out.html() + "</details>\n";
}

std::string norm_curves(const std::vector<Json>& lines, const char* tensor, const char* title) {
  std::vector<Series> series;
  constexpr std::pair<const char*, const char*> kCurves[] = {
      {"max", "max"}, {"99 %", "p99"}, {"median", "median"}, {"1 %", "p1"}, {"min", "min"}};
  for (const auto& [name, key] : kCurves) {
    Series s{.name = name, .points = {}};
    for (const Json& line : lines)
      if (line.at("tensor") == tensor)
        s.points.emplace_back(line.at("layer").get<double>(), line.at(key).get<double>());
    std::sort(s.points.begin(), s.points.end());
    series.push_back(std::move(s));
  }
  return heading(title, xy_plot({.x_label = "layer", .y_label = "token norm", .y = AxisScale::Log}, series));
}

/// Token norms by page in the layer whose keys vary most.
std::string norm_positions(const std::vector<Json>& lines) {
  const Json* worst = nullptr;
  for (const Json& line : lines)
    if (line.at("tensor") == "k" &&
        (worst == nullptr || line.at("ratio").get<double>() > worst->at("ratio").get<double>()))
      worst = &line;
  if (worst == nullptr) return "";
  const int layer = worst->at("layer").get<int>();
  std::vector<Series> series;
  for (const Json& line : lines) {
    if (line.at("layer").get<int>() != layer) continue;
    const std::string tensor = line.at("tensor").get<std::string>();
    for (const char* key : {"page_min", "page_max"}) {
      Series s{.name = tensor + (std::string(key) == "page_min" ? " min" : " max"), .points = {}};
      for (size_t i = 0; i < line.at(key).size(); i++)
        s.points.emplace_back(64.0 * static_cast<double>(i), line.at(key)[i].get<double>());
      series.push_back(std::move(s));
    }
  }
  return heading(
      fmt::format("Norms by position, layer {}", layer).c_str(),
      xy_plot({.x_label = "position (pages of 64 tokens)", .y_label = "token norm", .y = AxisScale::Log},
              series));
}

std::string stage_name(const Json& line) {
  return line.at("transform").get<std::string>() + (line.value("scaled", false) ? " + token scaling" : "");
}

std::string stages(const std::vector<Json>& lines) {
  if (lines.empty()) return "";
  HtmlTable table(
      {"keys coded in", "max / min norm", "paper's bound", "step²/12", "error", "error per token"});
  std::vector<Series> series;
  for (const std::string& name : distinct(lines, stage_name)) {
    const char* keys[] = {"ratio", "bound", "uniform", "measured", "per_token"};
    double sums[5] = {};
    int n = 0;
    Series s{.name = name, .points = {}};
    for (const Json& line : lines) {
      if (stage_name(line) != name) continue;
      for (int i = 0; i < 5; i++) sums[i] += line.at(keys[i]).get<double>();
      s.points.emplace_back(line.at("layer").get<double>(), line.at("per_token").get<double>());
      n++;
    }
    std::vector<std::string> row = {name};
    for (const double sum : sums) row.push_back(readable(sum / n));
    table.add(row);
    series.push_back(std::move(s));
  }
  return fmt::format("<h3>Keys, 2 bits per channel over {} tokens</h3>\n",
                     lines.front().at("group").get<int>()) +
         table.html() +
         "<p class=\"note\">Means over layers; energies relative to the keys'. The bound (2605.19660) is on "
         "step²/12; scaling every token to one norm makes it zero.</p>\n" +
         xy_plot({.x_label = "layer", .y_label = "relative error per token", .y = AxisScale::Log}, series);
}

}  // namespace

std::string attention_section(const ReportData& data) {
  const std::vector<Json>& lines = data.of("attend");
  if (lines.empty()) return "";
  const auto plot = [&](const char* title, const char* key, const char* label, bool squares) {
    return heading(title, xy_plot({.x_label = "layer", .y_label = label, .y = AxisScale::Log},
                                  by_layer(lines, key, squares)));
  };
  std::string out =
      "<section><h2>Where a method loses</h2>\n<p class=\"note\">Every layer reads bf16's own q, k "
      "and v, so its error is its own. Heads are pooled as root mean square (divergence: mean)."
      "</p>\n";
  out += plot("Attention output", "output", "relative rms error", true);
  out += plot("With keys alone in codes", "output_k", "relative rms error", true);
  out += plot("With values alone in codes", "output_v", "relative rms error", true);
  out += plot("Divergence of the attention weights", "attention_kl", "KL, nats per query", false);
  out += plot("Keys under C_Q", "key", "relative rms error", true);
  out += plot("Values under W_o'W_o", "value", "relative rms error", true);
  double full = 0;
  for (const Json& line : lines) full = std::max(full, line.at("output").get<double>());
  for (const std::string& method : distinct(lines, method_label))
    if (method != "bf16")
      out += fmt::format("<h3>Attention output error by head: {}</h3>\n<div class=\"scroll\">{}</div>\n",
                         escape_html(method), head_map(lines, method, "output", full));
  return out + "</section>\n";
}

std::string norms_section(const ReportData& data) {
  const std::vector<Json>&norms = data.of("norms"), &steps = data.of("norm-stages");
  if (norms.empty() && steps.empty()) return "";
  std::string out = "<section><h2>Token norms</h2>\n";
  if (!norms.empty())
    out += norm_curves(norms, "k", "Keys by layer") + norm_curves(norms, "v", "Values by layer") +
           norm_positions(norms) + norm_table(norms);
  return out + stages(steps) + "</section>\n";
}

}  // namespace kv2
