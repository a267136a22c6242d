// SPDX-License-Identifier: Apache-2.0
#include "eval/report_data.h"

#include <algorithm>

#include "base/check.h"

namespace kv2 {
namespace {

/// Fields that the page reads; a line without one of them is refused.
struct JudgeFields {
  const char* name;
  std::vector<const char*> texts, numbers, lists;
};
/// Fields of any judge that are counted with: whole numbers from 0 on.
constexpr const char* kCounts[] = {"layer", "kv_head", "length", "sink", "recent", "group"};
constexpr int64_t kLargestCount = int64_t{1} << 31;

const std::vector<JudgeFields>& known_judges() {
  static const std::vector<JudgeFields> all = {
      {"kld",
       {"method"},
       {"history_bits", "all_in_bits", "kv_bytes", "tokens", "ppl", "kl_mean", "kl_median", "kl_p99",
        "kl_max", "top1"},
       {}},
      {"attend",
       {"method"},
       {"layer", "kv_head", "history_mass", "logit_rms", "weighted_logit", "attention_kl", "output",
        "output_k", "output_v", "key", "value"},
       {}},
      {"norms",
       {"tensor"},
       {"layer", "min", "p1", "median", "p99", "max", "ratio"},
       {"first", "page_min", "page_mean", "page_max"}},
      {"norm-stages",
       {"transform"},
       {"layer", "group", "ratio", "bound", "uniform", "measured", "per_token"},
       {}},
      {"needle", {"method", "task"}, {"length", "depth", "questions", "exact"}, {}},
      {"ruler", {"method", "task"}, {"length", "questions", "exact"}, {}},
      {"generate",
       {"method"},
       {"prompts", "tokens", "left_mean", "agree", "distinct_4", "longest_loop", "collapsed"},
       {}}};
  return all;
}

/// Lines of judges that are older than the field "judge" have none: they are of kld.
std::string judge_of(const Json& line) {
  const auto at = line.find("judge");
  if (at != line.end()) return at->is_string() ? at->get<std::string>() : at->dump();
  return line.contains("kl_mean") ? "kld" : "";
}

void check_fields(const Json& line, const JudgeFields& judge, const std::string& where) {
  const auto require = [&](const char* key, const char* type, bool (Json::*is)() const noexcept) {
    const auto at = line.find(key);
    if (at == line.end() || !((*at).*is)())
      throw_error(ErrorCode::BadFile, "{}: a line of {} needs the {} '{}', {}", where, judge.name, type, key,
                  at == line.end() ? "there is none" : "found " + at->dump().substr(0, 40));
  };
  for (const char* key : judge.texts) require(key, "text", &Json::is_string);
  for (const char* key : judge.numbers) require(key, "number", &Json::is_number);
  for (const char* key : judge.lists) {
    require(key, "list", &Json::is_array);
    for (const Json& x : line[key])
      if (!x.is_number())
        throw_error(ErrorCode::BadFile, "{}: '{}' has {} among its numbers", where, key,
                    x.dump().substr(0, 40));
  }
}

/// Fields that a line may leave out, where it has them.
void check_optional(const Json& line, const std::string& where) {
  const auto refuse = [&](const char* key, const char* what, const Json& found) {
    throw_error(ErrorCode::BadFile, "{}: '{}' is {}, found {}", where, key, what, found.dump().substr(0, 40));
  };
  for (const char* key : kCounts) {
    const auto at = line.find(key);
    if (at == line.end()) continue;
    if (!at->is_number_integer() || *at < 0 || *at >= kLargestCount)
      refuse(key, "a whole number from 0 to 2147483647", *at);
  }
  if (const auto at = line.find("prefill"); at != line.end() && !at->is_string())
    refuse("prefill", "a text", *at);
  for (const char* key : {"scaled", "beyond_context"})
    if (const auto at = line.find(key); at != line.end() && !at->is_boolean())
      refuse(key, "true or false", *at);
  if (const auto at = line.find("kl_tokens"); at != line.end() && !at->is_number())
    refuse("kl_tokens", "a number", *at);
  if (const auto at = line.find("buckets"); at != line.end()) {
    if (!at->is_array()) refuse("buckets", "a list", *at);
    for (const Json& b : *at)
      for (const char* key : {"begin", "end", "tokens", "flips", "kl_mean"})
        if (!b.is_object() || !b.contains(key) || !b[key].is_number())
          refuse("buckets", "a list of objects with begin, end, tokens, flips and kl_mean", b);
  }
  if (const auto run = line.find("run"); run != line.end()) {
    if (!run->is_object()) refuse("run", "an object", *run);
    for (const char* key : {"model", "text_hash"})
      if (run->contains(key) && !(*run)[key].is_string()) refuse(key, "a text", (*run)[key]);
    if (run->contains("text_tokens") && !(*run)["text_tokens"].is_number_integer())
      refuse("text_tokens", "a whole number", (*run)["text_tokens"]);
  }
}

void read_line(const std::string& text, const std::string& where, ReportData& out) {
  Json line = Json::parse(text, nullptr, false);
  if (!line.is_object())
    throw_error(ErrorCode::BadFile,
                "{}: not a JSON object: {}; a report is made from lines of `kv2 eval JUDGE … --json`", where,
                Json(text.substr(0, 40)).dump(-1, ' ', false, Json::error_handler_t::replace));
  const std::string name = judge_of(line);
  std::string known;
  for (const JudgeFields& judge : known_judges()) {
    if (name == judge.name) {
      check_fields(line, judge, where);
      check_optional(line, where);
      out.lines[name].push_back(std::move(line));
      return;
    }
    known += std::string(known.empty() ? "" : ", ") + judge.name;
  }
  throw_error(ErrorCode::BadFile, "{}: unknown judge '{}'; known: {}", where, name, known);
}

}  // namespace

ReportData read_results(const std::vector<ResultFile>& files) {
  ReportData out;
  for (const ResultFile& file : files) {
    size_t begin = 0;
    for (int number = 1; begin < file.text.size(); number++) {
      const size_t end = std::min(file.text.find('\n', begin), file.text.size());
      const std::string line = file.text.substr(begin, end - begin);
      begin = end + 1;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      read_line(line, fmt::format("{}: line {}", file.name, number), out);
    }
  }
  if (out.lines.empty()) {
    std::string names;
    for (const ResultFile& file : files) names += (names.empty() ? "" : ", ") + file.name;
    throw_error(ErrorCode::BadArgument, "no results in {}: give files of `kv2 eval JUDGE … --json`",
                names.empty() ? "no file" : names);
  }
  return out;
}

std::string method_label(const Json& line) {
  std::string out = line.at("method").get<std::string>();
  const int64_t sink = line.value("sink", int64_t{64}), recent = line.value("recent", int64_t{256});
  if (out != "bf16" && (sink != 64 || recent != 256)) out += fmt::format(" [{}+{}]", sink, recent);
  if (line.value("prefill", std::string("windowed")) == "exact") out += " (exact prefill)";
  return out;
}

std::string subject_of(const Json& line) {
  const auto run = line.find("run");
  if (run == line.end() || !run->is_object()) return "";
  return fmt::format("{}, text {} ({} tokens)", run->value("model", std::string("model")),
                     run->value("text_hash", std::string("?")).substr(0, 12),
                     run->value("text_tokens", int64_t{0}));
}

std::vector<std::string> distinct(const std::vector<Json>& lines, std::string (*key)(const Json&)) {
  std::vector<std::string> out;
  for (const Json& line : lines) {
    const std::string value = key(line);
    if (std::find(out.begin(), out.end(), value) == out.end()) out.push_back(value);
  }
  return out;
}

}  // namespace kv2
