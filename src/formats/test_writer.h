// SPDX-License-Identifier: Apache-2.0
// Builds small GGUF and safetensors files in memory, for tests and fuzz seeds: honest ones, and, through the
// fields that can be set to anything, dishonest ones. Written apart from the parsers, so that a shared
// mistake is unlikely.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kv2::testing {

template <class T>
std::string le(T x) {
  return {reinterpret_cast<const char*>(&x), sizeof x};
}

inline std::span<const std::byte> as_bytes(const std::string& s) {
  return std::as_bytes(std::span(s));
}

class GgufWriter {
 public:
  uint32_t magic = 0x46554747, version = 3;
  std::optional<uint64_t> n_tensors, n_keys;  // instead of the real counts
  size_t alignment = 32;                      // of what is laid out; the key is the caller's

  static std::string text(std::string_view s) { return le<uint64_t>(s.size()) + std::string(s); }

  /// `type` and `value` as they stand in the file.
  GgufWriter& key(std::string_view name, uint32_t type, const std::string& value) {
    keys_ += text(name) + le(type) + value;
    n_keys_++;
    return *this;
  }
  GgufWriter& u32(std::string_view name, uint32_t x) { return key(name, 4, le(x)); }
  GgufWriter& f32(std::string_view name, float x) { return key(name, 6, le(x)); }
  GgufWriter& boolean(std::string_view name, bool x) { return key(name, 7, le<uint8_t>(x)); }
  GgufWriter& string(std::string_view name, std::string_view x) { return key(name, 8, text(x)); }
  GgufWriter& array(std::string_view name, uint32_t type, uint64_t n, const std::string& values) {
    return key(name, 9, le(type) + le(n) + values);
  }
  GgufWriter& strings(std::string_view name, const std::vector<std::string>& x) {
    std::string all;
    for (const std::string& s : x) all += text(s);
    return array(name, 8, x.size(), all);
  }

  /// dims: fastest first, as files have them. Laid out behind the last tensor, or at `offset`.
  GgufWriter& tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                     const std::string& data, std::optional<uint64_t> offset = {}) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    table_ += text(name) + le<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (const uint64_t d : dims) table_ += le(d);
    table_ += le(type) + le<uint64_t>(offset.value_or(data_.size()));
    data_ += data;
    n_tensors_++;
    return *this;
  }

  std::string bytes() const {
    std::string out =
        le(magic) + le(version) + le(n_tensors.value_or(n_tensors_)) + le(n_keys.value_or(n_keys_));
    out += keys_ + table_;
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data_;
  }

 private:
  std::string keys_, table_, data_;
  uint64_t n_keys_ = 0, n_tensors_ = 0;
};

inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  return le<uint64_t>(header.size()) + header + data;
}

/// A file with a key of every kind and tensors of several types, ending with its last tensor's last byte.
inline std::string small_gguf() {
  const float values[6] = {1.5f, -2.25f, 3.0f, 0.125f, -7.0f, 0.5f};
  const std::string f32(reinterpret_cast<const char*>(values), sizeof values);
  std::string q4_0 = le<uint16_t>(0x3c00), q8_0 = le<uint16_t>(0x3800);  // d = 1, d = 0.5
  for (int i = 0; i < 16; i++) q4_0 += static_cast<char>(i | (15 - i) << 4);
  for (int i = 0; i < 32; i++) q8_0 += static_cast<char>(i * 7 - 100);
  return GgufWriter()
      .string("general.architecture", "llama")
      .key("test.u8", 0, le<uint8_t>(200))
      .key("test.i8", 1, le<int8_t>(-100))
      .key("test.u16", 2, le<uint16_t>(60000))
      .key("test.i16", 3, le<int16_t>(-30000))
      .u32("test.u32", 4000000000u)
      .key("test.i32", 5, le<int32_t>(-2000000000))
      .f32("test.f32", 0.1f)
      .boolean("test.bool", true)
      .key("test.u64", 10, le<uint64_t>(INT64_MAX))
      .key("test.i64", 11, le<int64_t>(INT64_MIN))
      .key("test.f64", 12, le<double>(1e300))
      .strings("test.strings", {"a", "", "two words"})
      .array("test.i32s", 5, 3, le<int32_t>(1) + le<int32_t>(-2) + le<int32_t>(3))
      .array("test.f32s", 6, 2, le(0.5f) + le(-1.5f))
      .array("test.bools", 7, 3, std::string("\1\0\1", 3))
      .array("test.none", 8, 0, "")
      .tensor("matrix", {3, 2}, 0, f32)
      .tensor("quant", {32, 1}, 2, q4_0)
      .tensor("vector", {32}, 8, q8_0)
      .bytes();
}

inline std::string small_safetensors() {
  const float matrix[6] = {1.5f, -2.25f, 3.0f, 0.125f, -7.0f, 0.5f};
  return safetensors_bytes(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]},)"
      R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"c":{"dtype":"I8","shape":[1,1,2],"data_offsets":[28,30]}})"
      "  ",
      std::string(reinterpret_cast<const char*>(matrix), sizeof matrix) + le<uint16_t>(0x3fc0) +
          le<uint16_t>(0xc000) + std::string("\5\6", 2));
}

}  // namespace kv2::testing
