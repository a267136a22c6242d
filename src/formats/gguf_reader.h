// SPDX-License-Identifier: Apache-2.0
// GgufReader: a cursor over the head of a GGUF file. Every read is checked against what is left, and an error
// says what was being read, where, and how much there was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "formats/gguf.h"

namespace kv2 {

class GgufReader {
 public:
  GgufReader(std::span<const std::byte> bytes, std::string file) : bytes_(bytes), file_(std::move(file)) {}

  size_t position() const { return at_; }
  size_t remaining() const { return bytes_.size() - at_; }

  /// `what` names the thing being read, for messages: "value of key 'x'".
  uint32_t u32(std::string_view what);
  uint64_t u64(std::string_view what);
  std::string string(size_t max_bytes, std::string_view what);
  /// Type number, then the value.
  GgufValue value(std::string_view what);
  /// Refuses a count whose items, of at least `min_bytes` each, cannot fit in what is left.
  void check_count(uint64_t n, size_t min_bytes, std::string_view what) const;

  [[noreturn]] void fail(std::string_view what, std::string_view problem) const;

 private:
  std::span<const std::byte> take(size_t n, std::string_view what);
  template <class T>
  T number(std::string_view what);
  template <class T>
  int64_t integer(std::string_view what);
  int64_t any_integer(GgufType type, std::string_view what);
  double any_float(GgufType type, std::string_view what);
  bool boolean(std::string_view what);
  GgufType type(std::string_view what);
  GgufValue scalar(GgufType type, std::string_view what);
  GgufValue array(std::string_view what);

  std::span<const std::byte> bytes_;
  std::string file_;
  size_t at_ = 0;
};

/// "uint32", "string", …
std::string_view type_name(GgufType type);

}  // namespace kv2
