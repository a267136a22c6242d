// SPDX-License-Identifier: Apache-2.0
#include "formats/safetensors_header.h"

#include <simdjson.h>

#include <set>
#include <unordered_set>

#include "base/check.h"
#include "formats/quote.h"
#include "formats/safetensors.h"

namespace kv2 {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

constexpr size_t kHeaderDepth = 8,
                 kConfigDepth = 64;  // a header nests three deep, an honest config.json about ten

[[noreturn]] void bad(const std::string& file, std::string_view where, std::string_view problem) {
  throw_error(ErrorCode::BadFile, "{}: {}{}{}", file, where, where.empty() ? "" : ": ", problem);
}

/// Parses `json`, whose top must be an object. The parser owns what is returned.
object parse_object(simdjson::dom::parser& parser, std::string_view json, size_t depth,
                    const std::string& file) {
  // The library asks for readable bytes behind the text, which a mapped file does not have: it copies
  // (padded_string).
  simdjson::error_code error = parser.allocate(json.size(), depth);
  object top;
  if (!error) error = parser.parse(simdjson::padded_string(json)).get(top);
  if (error == simdjson::INCORRECT_TYPE) bad(file, "", "the JSON is not an object");
  if (error) bad(file, "", fmt::format("bad JSON: {}", simdjson::error_message(error)));
  return top;
}

std::string text(element e, const std::string& file, const std::string& where) {
  std::string_view s;
  if (e.get(s)) bad(file, where, "expected a string");
  return std::string(s);
}

std::vector<uint64_t> integers(element e, size_t max_n, const std::string& file, const std::string& where) {
  array a;
  if (e.get(a)) bad(file, where, "expected an array");
  std::vector<uint64_t> out;
  for (element x : a) {
    uint64_t v = 0;
    if (x.get(v) || v > static_cast<uint64_t>(INT64_MAX))
      bad(file, where, "expected integers from 0 to 2^63 - 1");
    if (out.size() == max_n) bad(file, where, fmt::format("more than {} integers", max_n));
    out.push_back(v);
  }
  return out;
}

HeaderTensor tensor(std::string_view name, element e, const std::string& file) {
  HeaderTensor t;
  t.info.name = name;
  const std::string where = "tensor " + quote(name);
  object fields;
  if (e.get(fields)) bad(file, where, "expected an object");
  std::set<std::string_view> seen;
  for (const auto& [key, value] : fields) {
    if (!seen.insert(key).second) bad(file, where, fmt::format("{} is there twice", quote(key)));
    if (key == "dtype") {
      t.info.type = text(value, file, where + ": dtype");
    } else if (key == "shape") {
      for (const uint64_t d : integers(value, SafetensorsFile::kMaxDims, file, where + ": shape"))
        t.info.shape.push_back(static_cast<int64_t>(d));
    } else if (key == "data_offsets") {
      const std::vector<uint64_t> offsets = integers(value, 2, file, where + ": data_offsets");
      if (offsets.size() != 2) bad(file, where, "data_offsets has not two integers");
      t.begin = offsets[0];
      t.end = offsets[1];
    } else {
      bad(file, where, fmt::format("unknown key {}; a tensor has dtype, shape and data_offsets", quote(key)));
    }
  }
  if (seen.size() != 3) bad(file, where, "a tensor needs dtype, shape and data_offsets");
  return t;
}

std::map<std::string, std::string> text_map(element e, const std::string& file, const std::string& where) {
  object fields;
  if (e.get(fields)) bad(file, where, "expected an object");
  std::map<std::string, std::string> out;
  for (const auto& [key, value] : fields) {
    const std::string here = where + ": " + quote(key);
    if (!out.emplace(std::string(key), text(value, file, here)).second) bad(file, here, "it is there twice");
  }
  return out;
}

/// A shard name comes from a file of unknown origin: it may name a file of the directory and nothing else.
bool plain_file_name(std::string_view s) {
  return !s.empty() && s.size() <= 255 && s.front() != '.' &&
         s.find_first_of(std::string_view("/\\\0", 3)) == s.npos;
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& file) {
  if (json.empty() || json.front() != '{')
    bad(file, "", "not a safetensors file: its header does not begin with '{'");
  simdjson::dom::parser parser;
  SafetensorsHeader out;
  std::unordered_set<std::string_view> seen;
  for (const auto& [key, value] : parse_object(parser, json, kHeaderDepth, file)) {
    if (!seen.insert(key).second) bad(file, "header", fmt::format("{} is there twice", quote(key)));
    if (key == "__metadata__")
      out.metadata = text_map(value, file, "__metadata__");
    else
      out.tensors.push_back(tensor(key, value, file));
  }
  return out;
}

std::map<std::string, std::string> parse_safetensors_index(std::string_view json, const std::string& file) {
  simdjson::dom::parser parser;
  bool found = false;
  std::map<std::string, std::string> out;
  for (const auto& [key, value] : parse_object(parser, json, kHeaderDepth, file)) {
    if (key != "weight_map") continue;
    if (found) bad(file, "", "'weight_map' is there twice");
    found = true;
    out = text_map(value, file, "weight_map");
  }
  if (!found) bad(file, "", "no 'weight_map'");
  if (out.empty()) bad(file, "weight_map", "it is empty");
  for (const auto& [name, shard] : out)
    if (!plain_file_name(shard))
      bad(file, "weight_map: " + quote(name),
          fmt::format("shard {} is not a plain file name of the same directory", quote(shard)));
  return out;
}

void require_json_object(std::string_view json, const std::string& file) {
  simdjson::dom::parser parser;
  parse_object(parser, json, kConfigDepth, file);
}

}  // namespace kv2
