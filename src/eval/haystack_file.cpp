// SPDX-License-Identifier: Apache-2.0
#include "eval/haystack_file.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/file.h"
#include "eval/npy.h"

namespace kv2 {
namespace {

using nlohmann::json;

/// One value of the file and where it is, for messages: "h.json: sets[0].haystacks[2].ids".
class Place {
 public:
  Place(const json& value, std::string where) : value_(value), where_(std::move(where)) {}

  [[noreturn]] void fail(const std::string& expected) const {
    throw_error(ErrorCode::BadFile, "{}: {} expected, found {}", where_, expected, value_.type_name());
  }
  /// This is an object with no other keys than these.
  void allow(std::initializer_list<std::string_view> keys) const {
    if (!value_.is_object()) fail("an object");
    for (const auto& [key, ignored] : value_.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        std::string known;
        for (const std::string_view k : keys) known += (known.empty() ? "" : ", ") + std::string(k);
        throw_error(ErrorCode::BadFile, "{}: key '{}' is unknown; there are {}", where_, key, known);
      }
  }
  bool has(const char* key) const { return value_.contains(key); }
  Place at(const char* key) const {
    if (!has(key)) throw_error(ErrorCode::BadFile, "{}: '{}' is missing", where_, key);
    return {value_.at(key), where_ + "." + key};
  }
  std::vector<Place> items() const {
    if (!value_.is_array()) fail("an array");
    std::vector<Place> out;
    for (size_t i = 0; i < value_.size(); i++) out.emplace_back(value_[i], fmt::format("{}[{}]", where_, i));
    return out;
  }
  bool is_text() const { return value_.is_string(); }
  std::string text() const {
    if (!value_.is_string()) fail("a string");
    return value_.get<std::string>();
  }
  int64_t integer() const {
    if (!value_.is_number_integer()) fail("an integer");
    return value_.get<int64_t>();
  }
  double number() const {
    if (!value_.is_number()) fail("a number");
    return value_.get<double>();
  }
  std::vector<int32_t> ids() const {
    std::vector<int32_t> out;
    for (const Place& p : items()) {
      const int64_t id = p.integer();
      if (id < 0 || id > std::numeric_limits<int32_t>::max())
        throw_error(ErrorCode::BadFile, "{}: {} is no token id", p.where_, id);
      out.push_back(static_cast<int32_t>(id));
    }
    if (out.empty()) fail("at least one token id");
    return out;
  }

 private:
  const json& value_;
  std::string where_;
};

RetrievalQuestion question_of(const Place& p) {
  p.allow({"question", "answer", "values", "depth"});
  RetrievalQuestion q{
      .question = p.at("question").ids(), .answer = p.at("answer").ids(), .values = {}, .depth = 0};
  if (p.has("values"))
    for (const Place& v : p.at("values").items()) q.values.push_back(v.text());
  if (p.has("depth")) q.depth = p.at("depth").number();
  return q;
}

Haystack haystack_of(const Place& p, const std::filesystem::path& folder) {
  p.allow({"ids", "n_needles", "questions"});
  Haystack h;
  const Place ids = p.at("ids");
  h.ids = ids.is_text() ? read_npy_tokens((folder / ids.text()).string()) : ids.ids();
  if (p.has("n_needles")) h.n_needles = p.at("n_needles").integer();
  for (const Place& q : p.at("questions").items()) h.questions.push_back(question_of(q));
  return h;
}

}  // namespace

std::vector<HaystackSet> read_haystacks(const std::string& path) {
  const std::string text = read_file(path, size_t{1} << 30);
  json root;
  try {
    root = json::parse(text);
  } catch (const json::exception& e) {
    throw_error(ErrorCode::BadFile, "{}: no JSON: {}", path, e.what());
  }
  const Place top(root, path);
  top.allow({"sets"});
  std::vector<HaystackSet> out;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (const Place& p : top.at("sets").items()) {
    p.allow({"task", "length", "seed", "haystacks"});
    HaystackSet set{.task = p.at("task").text(), .length = 0, .seed = 0, .haystacks = {}};
    for (const Place& h : p.at("haystacks").items()) set.haystacks.push_back(haystack_of(h, folder));
    if (set.n_questions() == 0) p.fail("at least one haystack with a question");
    set.length = p.has("length") ? p.at("length").integer() : set.context(0);
    if (p.has("seed")) set.seed = static_cast<uint64_t>(p.at("seed").integer());
    out.push_back(std::move(set));
  }
  if (out.empty()) top.fail("at least one set");
  return out;
}

void write_haystacks(const std::string& path, const std::vector<HaystackSet>& sets) {
  nlohmann::ordered_json root;
  root["sets"] = nlohmann::ordered_json::array();
  for (const HaystackSet& set : sets) {
    nlohmann::ordered_json s;
    s["task"] = set.task;
    s["length"] = set.length;
    s["seed"] = set.seed;
    s["haystacks"] = nlohmann::ordered_json::array();
    for (const Haystack& h : set.haystacks) {
      nlohmann::ordered_json j;
      j["ids"] = h.ids;
      j["n_needles"] = h.n_needles;
      j["questions"] = nlohmann::ordered_json::array();
      for (const RetrievalQuestion& q : h.questions) {
        nlohmann::ordered_json one;
        one["question"] = q.question;
        one["answer"] = q.answer;
        one["values"] = q.values;
        one["depth"] = q.depth;
        j["questions"].push_back(std::move(one));
      }
      s["haystacks"].push_back(std::move(j));
    }
    root["sets"].push_back(std::move(s));
  }
  const std::string text = root.dump() + "\n";
  write_file_atomically(path, [&](std::FILE* f) { write_all(f, std::as_bytes(std::span(text))); });
}

}  // namespace kv2
