// SPDX-License-Identifier: Apache-2.0
// Typed access to the metadata of a GGUF file.
#include "base/check.h"
#include "formats/gguf.h"
#include "formats/gguf_reader.h"
#include "formats/quote.h"

namespace kv2 {

std::string GgufValue::type_text() const {
  return fmt::format("{}{}", array ? "array of " : "", type_name(type));
}

const GgufValue* GgufFile::find_key(std::string_view key) const {
  const auto it = key_index_.find(std::string(key));
  return it == key_index_.end() ? nullptr : &metadata_[it->second].second;
}

const GgufValue& GgufFile::require_key(std::string_view key) const {
  const GgufValue* v = find_key(key);
  if (!v) throw_error(ErrorCode::BadFile, "{}: metadata has no key {}", name_, quote(key));
  return *v;
}

void GgufFile::wrong_type(std::string_view key, const GgufValue& value, std::string_view expected) const {
  throw_error(ErrorCode::BadFile, "{}: key {} is {}; expected {}", name_, quote(key), value.type_text(),
              expected);
}

int64_t GgufFile::integer(std::string_view key) const {
  const GgufValue& v = require_key(key);
  if (const auto* x = std::get_if<int64_t>(&v.value)) return *x;
  wrong_type(key, v, "an integer");
}

double GgufFile::number(std::string_view key) const {
  const GgufValue& v = require_key(key);
  if (const auto* x = std::get_if<double>(&v.value)) return *x;
  if (const auto* x = std::get_if<int64_t>(&v.value)) return static_cast<double>(*x);
  wrong_type(key, v, "a number");
}

const std::string& GgufFile::string(std::string_view key) const {
  const GgufValue& v = require_key(key);
  if (const auto* x = std::get_if<std::string>(&v.value)) return *x;
  wrong_type(key, v, "a string");
}

std::optional<int64_t> GgufFile::find_integer(std::string_view key) const {
  return find_key(key) ? std::optional(integer(key)) : std::nullopt;
}

std::optional<double> GgufFile::find_number(std::string_view key) const {
  return find_key(key) ? std::optional(number(key)) : std::nullopt;
}

std::optional<bool> GgufFile::find_bool(std::string_view key) const {
  const GgufValue* v = find_key(key);
  if (!v) return std::nullopt;
  if (const auto* x = std::get_if<bool>(&v->value)) return *x;
  wrong_type(key, *v, "a bool");
}

const std::string* GgufFile::find_string(std::string_view key) const {
  return find_key(key) ? &string(key) : nullptr;
}

const std::vector<std::string>* GgufFile::find_strings(std::string_view key) const {
  const GgufValue* v = find_key(key);
  if (!v) return nullptr;
  if (const auto* x = std::get_if<GgufValue::Strings>(&v->value)) return x;
  wrong_type(key, *v, "an array of strings");
}

std::optional<std::vector<int64_t>> GgufFile::find_integers(std::string_view key) const {
  const GgufValue* v = find_key(key);
  if (!v) return std::nullopt;
  if (const auto* x = std::get_if<std::vector<int64_t>>(&v->value)) return *x;
  wrong_type(key, *v, "an array of integers");
}

std::optional<std::vector<double>> GgufFile::find_numbers(std::string_view key) const {
  const GgufValue* v = find_key(key);
  if (!v) return std::nullopt;
  if (const auto* x = std::get_if<std::vector<double>>(&v->value)) return *x;
  if (const auto* x = std::get_if<std::vector<int64_t>>(&v->value))
    return std::vector<double>(x->begin(), x->end());
  wrong_type(key, *v, "an array of numbers");
}

}  // namespace kv2
