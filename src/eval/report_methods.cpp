// SPDX-License-Identifier: Apache-2.0
// What methods cost and what they give: the table, the winner of each bit budget, the Pareto front, KL by
// position. Methods are compared within one model and text alone.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "eval/html_table.h"
#include "eval/report_sections.h"

namespace kv2 {
namespace {

double number(const Json& line, const char* key) {
  return line.at(key).get<double>();
}

bool quantized(const Json& line) {
  return number(line, "history_bits") < 16;
}

/// Of one model and text, by bits, the best first.
std::vector<Json> of_subject(const std::vector<Json>& all, const std::string& subject) {
  std::vector<Json> out;
  for (const Json& line : all)
    if (subject_of(line) == subject) out.push_back(line);
  std::stable_sort(out.begin(), out.end(), [](const Json& a, const Json& b) {
    const double bits_a = number(a, "history_bits"), bits_b = number(b, "history_bits");
    return bits_a != bits_b ? bits_a > bits_b : number(a, "kl_mean") < number(b, "kl_mean");
  });
  return out;
}

std::string table(const std::vector<Json>& lines) {
  HtmlTable out({"method", "history bits", "all-in bits", "KV bytes", "perplexity", "KL mean", "± se",
                 "median", "99 %", "max", "other top-1"});
  const auto kl = [](const Json& line, const char* key) {
    if (!quantized(line)) return std::string("0");
    const auto at = line.find(key);  // lines of older versions and short texts have no standard error
    return at != line.end() && at->is_number() ? fmt::format("{:.5f}", at->get<double>()) : std::string("–");
  };
  double best = INFINITY;
  for (const Json& line : lines)
    if (quantized(line)) best = std::min(best, number(line, "kl_mean"));
  for (const Json& line : lines)
    out.add({method_label(line), fmt::format("{:.4g}", number(line, "history_bits")),
             fmt::format("{:.4g}", number(line, "all_in_bits")), readable(number(line, "kv_bytes")),
             fmt::format("{:.4f}", number(line, "ppl")), kl(line, "kl_mean"), kl(line, "kl_se"),
             kl(line, "kl_median"), kl(line, "kl_p99"), kl(line, "kl_max"),
             fmt::format("{:.2f} %", 100 * (1 - number(line, "top1")))},
            quantized(line) && number(line, "kl_mean") == best ? HtmlTable::Emphasis::Best
                                                               : HtmlTable::Emphasis::None);
  const Json& first = lines.front();
  return out.html() +
         fmt::format(
             "<p class=\"note\">KL(bf16 ‖ method) in nats per token over {} positions whose history is "
             "not empty, perplexity over {}. Windows are 64 sink and 256 recent tokens in bf16 unless "
             "[sink+recent] says otherwise. History bits: a packed page's bytes over its elements; "
             "all-in: everything allocated for one sequence of a window's tokens.</p>\n",
             readable(first.value("kl_tokens", 0.0)), readable(number(first, "tokens")));
}

/// The winner of every number of history bits that a method has: the least KL at so many bits or fewer.
std::string winners(const std::vector<Json>& lines) {
  std::vector<double> budgets;
  for (const Json& line : lines)
    if (quantized(line)) budgets.push_back(std::round(number(line, "history_bits") * 1000) / 1000);
  std::sort(budgets.begin(), budgets.end());
  budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
  if (budgets.empty()) return "";
  HtmlTable out({"history bits, at most", "winner", "KL mean", "perplexity", "next", "its KL", "factor"}, 0);
  for (const double budget : budgets) {
    std::vector<const Json*> fit;
    for (const Json& line : lines)
      if (quantized(line) && number(line, "history_bits") <= budget + 1e-3) fit.push_back(&line);
    std::stable_sort(fit.begin(), fit.end(), [](const Json* a, const Json* b) {
      return number(*a, "kl_mean") < number(*b, "kl_mean");
    });
    const Json& best = *fit.front();
    std::vector<std::string> row = {fmt::format("{:.4g}", budget), method_label(best),
                                    fmt::format("{:.5f}", number(best, "kl_mean")),
                                    fmt::format("{:.4f}", number(best, "ppl"))};
    if (fit.size() > 1) {
      const double next = number(*fit[1], "kl_mean"), own = number(best, "kl_mean");
      row.insert(row.end(), {method_label(*fit[1]), fmt::format("{:.5f}", next),
                             own > 0 ? fmt::format("{:.2f}", next / own) : "–"});
    } else {
      row.insert(row.end(), {"–", "–", "–"});
    }
    out.add(row);
  }
  return "<h3>Winner per bit budget</h3>\n" + out.html();
}

/// Bits against KL; the front's line joins methods that nobody beats at their bits or fewer.
std::string pareto(const std::vector<Json>& lines, const char* bits, const char* title) {
  std::vector<Series> series;
  std::vector<std::pair<double, double>> points;
  for (const Json& line : lines) {
    if (!quantized(line) || number(line, "kl_mean") <= 0) continue;
    points.emplace_back(number(line, bits), number(line, "kl_mean"));
    series.push_back({.name = method_label(line), .points = {points.back()}, .draw = Draw::LabelledMarks});
  }
  if (points.empty()) return "";
  std::sort(points.begin(), points.end());
  Series front{.name = "", .points = {}, .draw = Draw::Line, .colour = 7};
  for (const auto& p : points)
    if (front.points.empty() || p.second < front.points.back().second) {
      if (!front.points.empty()) front.points.emplace_back(p.first, front.points.back().second);  // a step
      front.points.push_back(p);
    }
  series.insert(series.begin(), front);
  for (size_t i = 1; i < series.size(); i++) series[i].colour = static_cast<int>(i - 1);
  return fmt::format("<h3>{} against KL</h3>\n", title) +
         xy_plot({.x_label = title, .y_label = "KL mean, nats", .x = AxisScale::Log, .y = AxisScale::Log},
                 series);
}

std::string by_position(const std::vector<Json>& lines) {
  std::vector<Series> kl, flips;
  for (const Json& line : lines) {
    const auto buckets = line.find("buckets");
    if (!quantized(line) || buckets == line.end() || !buckets->is_array() || buckets->size() < 2) continue;
    Series by_kl{.name = method_label(line), .points = {}}, by_flips = by_kl;
    for (const Json& b : *buckets) {
      const double x = std::sqrt(std::max(1.0, b.value("begin", 0.0)) * b.value("end", 1.0));
      const double middle = b.value("begin", 0.0) > 0 ? x : b.value("end", 1.0) / 2;
      by_kl.points.emplace_back(middle, b.value("kl_mean", 0.0));
      by_flips.points.emplace_back(middle,
                                   100 * b.value("flips", 0.0) / std::max(1.0, b.value("tokens", 1.0)));
    }
    kl.push_back(by_kl);
    flips.push_back(by_flips);
  }
  if (kl.empty()) return "";
  return "<h3>By position</h3>\n" +
         xy_plot({.x_label = "position in the text (middle of its bucket)",
                  .y_label = "KL mean, nats",
                  .x = AxisScale::Log,
                  .y = AxisScale::Log},
                 kl) +
         xy_plot({.x_label = "position in the text (middle of its bucket)",
                  .y_label = "other top-1, %",
                  .x = AxisScale::Log,
                  .y = AxisScale::Linear},
                 flips);
}

}  // namespace

std::string methods_section(const ReportData& data) {
  const std::vector<Json>& all = data.of("kld");
  if (all.empty()) return "";
  std::string out = "<section><h2>Methods</h2>\n";
  for (const std::string& subject : distinct(all, subject_of)) {
    const std::vector<Json> lines = of_subject(all, subject);
    if (!subject.empty()) out += "<p class=\"subject\">" + escape_html(subject) + "</p>\n";
    out += table(lines) + winners(lines) + pareto(lines, "history_bits", "History bits") +
           pareto(lines, "all_in_bits", "All-in bits") + by_position(lines);
  }
  return out + "</section>\n";
}

}  // namespace kv2
