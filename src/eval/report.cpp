// SPDX-License-Identifier: Apache-2.0
// The page around the sections, and the sections of retrieval, generation and runs.
#include "eval/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "eval/html_table.h"
#include "eval/report_sections.h"

namespace kv2 {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.6em; } h2 { font-size: 1.3em; margin-top: 2.2em; border-bottom: 1px solid #8886; }
h3 { font-size: 1.05em; margin: 1.6em 0 .4em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92em; margin: .6em 0; }
th, td { padding: .25em .7em; text-align: left; border-bottom: 1px solid #8884; white-space: nowrap; }
th { border-bottom: 2px solid #8888; } .n { text-align: right; font-variant-numeric: tabular-nums; }
tr.best td { font-weight: 600; background: #0072b222; }
.note, .subject { opacity: .75; font-size: .9em; } .subject { font-weight: 600; }
figure { margin: .4em 0 1em; } svg { font: 12px system-ui, sans-serif; }
svg text { fill: currentColor; } svg .grid { stroke: currentColor; stroke-opacity: .14; }
svg.plot { width: 100%; max-width: 900px; height: auto; } svg .cell { stroke: currentColor; stroke-opacity: .15; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2em 1.2em; padding: 0; margin: .3em 0; font-size: .9em; }
code { font-size: .88em; overflow-wrap: anywhere; } summary { cursor: pointer; }
)";

std::string percent(const Json& line, const char* key) {
  const auto at = line.find(key);
  return at == line.end() || !at->is_number() ? "–" : fmt::format("{:.1f}", 100 * at->get<double>());
}

std::string task_of(const Json& line) {
  return line.at("task").get<std::string>();
}
/// Texts past the model's context have a star.
const char* star_of(const Json& line) {
  return line.value("beyond_context", false) ? "*" : "";
}
std::string task_and_length(const Json& line) {
  return fmt::format("{} at {}{}", task_of(line), line.at("length").get<int64_t>(), star_of(line));
}

/// One method's map of one task: depths down, lengths across.
std::string needle_map(const std::vector<Json>& lines) {
  std::set<double> depths;
  std::set<int64_t> lengths, starred;
  for (const Json& line : lines) {
    depths.insert(line.at("depth").get<double>());
    lengths.insert(line.at("length").get<int64_t>());
    if (*star_of(line) != '\0') starred.insert(line.at("length").get<int64_t>());
  }
  HeatMap map{.row_label = "depth",
              .column_label = "tokens",
              .rows = {},
              .columns = {},
              .values = {},
              .full = 1,
              .percent = true};
  for (const double d : depths) map.rows.push_back(fmt::format("{:.0f} %", 100 * d));
  for (const int64_t n : lengths)
    map.columns.push_back(readable(static_cast<double>(n)) + (starred.contains(n) ? "*" : ""));
  std::vector<double> sum(depths.size() * lengths.size(), 0.0), n(sum.size(), 0.0);
  for (const Json& line : lines) {
    const auto r = std::distance(depths.begin(), depths.find(line.at("depth").get<double>()));
    const auto c = std::distance(lengths.begin(), lengths.find(line.at("length").get<int64_t>()));
    const size_t cell = static_cast<size_t>(r) * lengths.size() + static_cast<size_t>(c);
    sum[cell] += line.at("exact").get<double>() * line.at("questions").get<double>();
    n[cell] += line.at("questions").get<double>();
  }
  for (size_t i = 0; i < sum.size(); i++)
    map.values.push_back(n[i] > 0 ? sum[i] / n[i] : std::numeric_limits<double>::quiet_NaN());
  return heat_map(map);
}

std::string ruler_table(const std::vector<Json>& lines) {
  const std::vector<std::string> methods = distinct(lines, method_label);
  std::vector<std::string> head = {"task and tokens", "questions"};
  head.insert(head.end(), methods.begin(), methods.end());
  HtmlTable table(head);
  for (const std::string& row_name : distinct(lines, task_and_length)) {
    std::vector<std::string> row = {row_name, ""};
    for (const std::string& method : methods) {
      std::string cell = "–";
      for (const Json& line : lines)
        if (task_and_length(line) == row_name && method_label(line) == method) {
          cell = percent(line, "exact") +
                 (line.contains("substring") ? " (" + percent(line, "substring") + ")" : std::string());
          row[1] = readable(line.at("questions").get<double>());
        }
      row.push_back(cell);
    }
    table.add(row);
  }
  return table.html() +
         "<p class=\"note\">Percent of questions whose every answer token is the arg max; in brackets "
         "RULER's "
         "score, the share of values that the freely generated text contains.</p>\n";
}

}  // namespace

std::string retrieval_section(const ReportData& data) {
  const std::vector<Json>&needles = data.of("needle"), &ruler = data.of("ruler");
  if (needles.empty() && ruler.empty()) return "";
  std::string out = "<section><h2>Retrieval</h2>\n";
  if (!needles.empty())
    out += "<p class=\"note\">Needles over depth and length: percent of answers exact to the token.</p>\n";
  for (const std::string& task : distinct(needles, task_of))
    for (const std::string& method : distinct(needles, method_label)) {
      std::vector<Json> lines;
      for (const Json& line : needles)
        if (task_of(line) == task && method_label(line) == method) lines.push_back(line);
      if (!lines.empty())
        out += fmt::format("<h3>{}: {}</h3>\n<div class=\"scroll\">{}</div>\n", escape_html(task),
                           escape_html(method), needle_map(lines));
    }
  if (!ruler.empty()) out += "<h3>RULER's NIAH tasks</h3>\n" + ruler_table(ruler);
  const auto beyond = [](const Json& line) { return *star_of(line) != '\0'; };
  if (std::any_of(needles.begin(), needles.end(), beyond) || std::any_of(ruler.begin(), ruler.end(), beyond))
    out += "<p class=\"note\">* longer than the context the model was trained for.</p>\n";
  return out + "</section>\n";
}

std::string generation_section(const ReportData& data) {
  const std::vector<Json>& lines = data.of("generate");
  if (lines.empty()) return "";
  HtmlTable table({"method", "prompts", "tokens", "leaves bf16 after", "same tokens, %", "distinct 4-grams",
                   "longest loop", "collapsed", "stuck"});
  for (const Json& line : lines)
    table.add(
        {method_label(line), readable(line.at("prompts").get<double>()),
         readable(line.at("tokens").get<double>()), readable(line.at("left_mean").get<double>()),
         percent(line, "agree"), fmt::format("{:.3f}", line.at("distinct_4").get<double>()),
         readable(line.at("longest_loop").get<double>()), readable(line.at("collapsed").get<double>()),
         line.contains("stuck") && line["stuck"].is_number() ? readable(line["stuck"].get<double>()) : "–"});
  return "<section><h2>Long generation</h2>\n" + table.html() + "</section>\n";
}

std::string runs_section(const ReportData& data) {
  std::vector<std::string> seen;
  HtmlTable table(
      {"judge", "command", "version", "model", "fingerprint", "text", "tokens", "calibration", "backend"}, 9);
  for (const auto& [judge, lines] : data.lines)
    for (const Json& line : lines) {
      const auto run = line.find("run");
      const std::string key = judge + (run == line.end() ? "" : run->dump());
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
      seen.push_back(key);
      const auto text = [&](const char* name) {
        if (run == line.end() || !run->is_object() || !run->contains(name)) return std::string("–");
        const Json& x = (*run)[name];
        return x.is_string() ? x.get<std::string>() : x.dump();
      };
      table.add({judge, text("command"), text("version"), text("model"), text("fingerprint"),
                 text("text_hash"), text("text_tokens"), text("calibration"), text("backend")});
    }
  return "<section><h2>How it was measured</h2>\n" + table.html() + "</section>\n";
}

std::string report_html(const std::vector<ResultFile>& files, const std::string& title) {
  const ReportData data = read_results(files);
  std::string body = methods_section(data) + retrieval_section(data) + generation_section(data) +
                     attention_section(data) + norms_section(data) + runs_section(data);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"/>\n<title>{0}</title>\n<style>{1}</style>\n</head>\n"
      "<body>\n<h1>{0}</h1>\n{2}</body>\n</html>\n",
      escape_html(title), kStyle, body);
}

}  // namespace kv2
