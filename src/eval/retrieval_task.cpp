// SPDX-License-Identifier: Apache-2.0
#include "eval/retrieval_task.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/check.h"

namespace kv2 {
namespace {

struct Row {
  const char *name, *description;
  RetrievalTask task;
};

using enum TaskShape;
using enum HaystackKind;
using K = NeedleKind;

// RULER c3f5e3b: keys are words; multi-key tasks have 4 needles, multi-value 4 values of one key, multi-query
// 4 keys a question. Here every key of a haystack is asked for, 4 or 16 of them, which shares its prefill.
const std::vector<Row> kRows = {
    {"single", "one needle", {Single, Noise, K::Word, K::Number, 1, 1, 1}},
    {"multi-key", "several needles, each asked for", {MultiKey, Essay, K::Word, K::Number, 4, 1, 1}},
    {"multi-value", "several values of each of four keys", {MultiValue, Essay, K::Word, K::Number, 4, 4, 1}},
    {"multi-query", "several keys in one question", {MultiQuery, Essay, K::Word, K::Number, 16, 1, 4}},
    {"niah_single_1", "RULER: noise, number", {Single, Noise, K::Word, K::Number, 1, 1, 1}},
    {"niah_single_2", "RULER: essay, number", {Single, Essay, K::Word, K::Number, 1, 1, 1}},
    {"niah_single_3", "RULER: essay, uuid", {Single, Essay, K::Word, K::Uuid, 1, 1, 1}},
    {"niah_multikey_1", "RULER: essay, 4 keys", {MultiKey, Essay, K::Word, K::Number, 4, 1, 1}},
    {"niah_multikey_2", "RULER: nothing but needles", {MultiKey, Needles, K::Word, K::Number, 0, 1, 1}},
    {"niah_multikey_3", "RULER: the same of uuids", {MultiKey, Needles, K::Uuid, K::Uuid, 0, 1, 1}},
    {"niah_multivalue", "RULER: essay, 4 values", {MultiValue, Essay, K::Word, K::Number, 4, 4, 1}},
    {"niah_multiquery", "RULER: essay, 4 queries", {MultiQuery, Essay, K::Word, K::Number, 16, 1, 4}},
};

constexpr const char* kOfRuler = "niah_";

template <class E>
struct Names {
  E value;
  const char* name;
};
constexpr Names<TaskShape> kShapes[] = {
    {Single, "single"}, {MultiKey, "multi-key"}, {MultiValue, "multi-value"}, {MultiQuery, "multi-query"}};
constexpr Names<HaystackKind> kHaystacks[] = {{Noise, "noise"}, {Essay, "essay"}, {Needles, "needles"}};
constexpr Names<NeedleKind> kKinds[] = {{K::Word, "word"}, {K::Number, "number"}, {K::Uuid, "uuid"}};

template <class E, size_t n>
std::string joined(const Names<E> (&names)[n]) {
  std::string out;
  for (const auto& [value, name] : names) out += (out.empty() ? "" : ", ") + std::string(name);
  return out;
}

template <class E, size_t n>
E named(const Names<E> (&names)[n], std::string_view what, std::string_view text) {
  for (const auto& [value, name] : names)
    if (text == name) return value;
  throw_error(ErrorCode::BadArgument, "{} '{}' is unknown; there are {}", what, text, joined(names));
}

template <class E, size_t n>
const char* name_in(const Names<E> (&names)[n], E value) {
  for (const auto& [v, name] : names)
    if (v == value) return name;
  return "?";
}

int count(std::string_view key, std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > 1 << 16)
    throw_error(ErrorCode::BadArgument, "task parameter {}={}: a number from 1 to 65536 is expected", key,
                text);
  return value;
}

void set(RetrievalTask& task, std::string_view key, std::string_view value) {
  if (key == "haystack")
    task.haystack = named(kHaystacks, "haystack", value);
  else if (key == "keys")
    task.keys = named(kKinds, "kind of keys", value);
  else if (key == "values")
    task.values = named(kKinds, "kind of values", value);
  else if (key == "n-keys")
    task.n_keys = count(key, value);
  else if (key == "n-values")
    task.n_values = count(key, value);
  else if (key == "n-queries")
    task.n_queries = count(key, value);
  else
    throw_error(
        ErrorCode::BadArgument,
        "task parameter '{}' is unknown; there are haystack, keys, values, n-keys, n-values, n-queries", key);
}

void check(const RetrievalTask& t, std::string_view text) {
  const auto refuse = [&](const char* why) {
    throw_error(ErrorCode::BadArgument, "task '{}': {}", text, why);
  };
  if (t.shape == Single && t.n_keys > 1) refuse("single has one key; multi-key has several");
  if (t.shape == Single && t.haystack == Needles)
    refuse("haystack=needles is many needles; use multi-key, multi-value or multi-query");
  if (t.shape != MultiValue && t.n_values > 1) refuse("several values of one key are the task multi-value");
  if (t.shape != MultiQuery && t.n_queries > 1) refuse("several keys in a question are the task multi-query");
  if (t.n_keys > 0 && t.haystack == Needles)
    refuse("haystack=needles has as many keys as fit, without n-keys");
  if (t.n_keys > 0 && t.n_queries > t.n_keys) refuse("n-queries is more than n-keys");
}

const Row* find_row(std::string_view name) {
  const auto at = std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) { return r.name == name; });
  return at == kRows.end() ? nullptr : &*at;
}

std::string_view task_name(std::string_view text) {
  return text.substr(0, text.find(':'));
}

/// `known`: what there is besides the table's names.
[[noreturn]] void refuse_name(std::string_view name, std::string known) {
  for (const Row& r : kRows) known += (known.empty() ? "" : ", ") + std::string(r.name);
  throw_error(ErrorCode::BadArgument, "task '{}' is unknown; there are {}", name, known);
}

}  // namespace

RetrievalTask RetrievalTask::parse(std::string_view text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const Row* row = find_row(task_name(text));
  if (row == nullptr) refuse_name(task_name(text), "");
  RetrievalTask task = row->task;
  bool counted = false;
  for (std::string_view rest = colon < text.size() ? text.substr(colon + 1) : ""; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view piece = rest.substr(0, comma);
    const size_t equals = piece.find('=');
    if (equals == std::string_view::npos)
      throw_error(ErrorCode::BadArgument, "task parameter '{}' has no value (name=value)", piece);
    set(task, piece.substr(0, equals), piece.substr(equals + 1));
    counted |= piece.substr(0, equals) == "n-keys";
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  if (task.haystack == Needles && !counted && task.shape != Single) task.n_keys = 0;
  if (task.haystack != Needles && task.n_keys == 0) task.n_keys = 4;  // niah_multikey_2:haystack=essay
  check(task, text);
  return task;
}

std::string RetrievalTask::text() const {
  const std::string name = name_in(kShapes, shape);
  const RetrievalTask& row = find_row(name)->task;
  std::string out;
  const auto add = [&](const std::string& piece) { out += (out.empty() ? ":" : ",") + piece; };
  if (haystack != row.haystack) add(fmt::format("haystack={}", name_in(kHaystacks, haystack)));
  if (keys != row.keys) add(fmt::format("keys={}", name_in(kKinds, keys)));
  if (values != row.values) add(fmt::format("values={}", name_in(kKinds, values)));
  if (n_keys != row.n_keys && n_keys > 0) add(fmt::format("n-keys={}", n_keys));
  if (n_values != row.n_values) add(fmt::format("n-values={}", n_values));
  if (n_queries != row.n_queries) add(fmt::format("n-queries={}", n_queries));
  return name + out;
}

std::vector<RetrievalTask> tasks_named(std::string_view text) {
  const std::string_view name = task_name(text);
  if (name != kAllOfRuler) {
    if (find_row(name) == nullptr) refuse_name(name, std::string(kAllOfRuler));
    return {RetrievalTask::parse(text)};
  }
  if (text != kAllOfRuler)
    throw_error(ErrorCode::BadArgument,
                "task '{}': ruler is RULER's eight tasks as they are; parameters belong to one task", text);
  std::vector<RetrievalTask> out;
  for (const Row& row : kRows)
    if (std::string_view(row.name).starts_with(kOfRuler)) out.push_back(row.task);
  return out;
}

const std::vector<RetrievalTaskInfo>& retrieval_tasks() {
  static const auto all = [] {
    std::vector<RetrievalTaskInfo> out;
    for (const Row& r : kRows) out.push_back({r.name, r.description});
    return out;
  }();
  return all;
}

}  // namespace kv2
