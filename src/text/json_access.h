// SPDX-License-Identifier: Apache-2.0
// Short words for reading a simdjson document whose shape is not to be trusted. An absent key and one of
// another type read alike; whoever must tell them apart asks for the object.
#pragma once

#include <simdjson.h>

#include <string_view>
#include <vector>

#include "base/check.h"

namespace kv2::json {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

inline simdjson::simdjson_result<element> at(object o, const char* key) {
  return o.at_key(key);
}

inline object object_at(object o, const char* key, const char* where) {
  object value;
  if (at(o, key).get(value) != simdjson::SUCCESS)
    throw_error(ErrorCode::BadFile, "{} has no object \"{}\"", where, key);
  return value;
}

inline std::string_view text_or(object o, const char* key, std::string_view otherwise) {
  std::string_view value;
  return at(o, key).get(value) == simdjson::SUCCESS ? value : otherwise;
}

inline bool flag(object o, const char* key, bool otherwise) {
  bool value = false;
  return at(o, key).get(value) == simdjson::SUCCESS ? value : otherwise;
}

inline std::string_view type_of(object o) {
  return text_or(o, "type", "");
}

/// A step that may be a Sequence, as its parts in order; nothing for null.
inline void append_steps(element step, const char* list, const char* where, std::vector<object>& out) {
  if (step.is_null()) return;
  object o;
  if (step.get(o) != simdjson::SUCCESS) throw_error(ErrorCode::BadFile, "the {} is no object", where);
  if (type_of(o) != "Sequence") return out.push_back(o);
  array parts;
  if (at(o, list).get(parts) != simdjson::SUCCESS)
    throw_error(ErrorCode::BadFile, "the {} is a Sequence without \"{}\"", where, list);
  for (const element part : parts) append_steps(part, list, where, out);
}
inline std::vector<object> steps_at(object o, const char* key, const char* list, const char* where) {
  std::vector<object> out;
  if (element step; at(o, key).get(step) == simdjson::SUCCESS) append_steps(step, list, where, out);
  return out;
}

}  // namespace kv2::json
