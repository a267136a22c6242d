// SPDX-License-Identifier: Apache-2.0
// GGUF v3, memory-mapped: metadata and tensors, every length, offset, count, overlap and alignment checked
// before use.
//
// clang-format off
//   | "GGUF" | version:4 | n_tensors:8 | n_keys:8 |
//   | keys: name, type:4, value … |                       string: length:8, bytes; array: type:4, count:8, values
//   | tensors: name, n_dims:4, dims:8 each, type:4, offset:8 … |      dims fastest first; offset in the data
//   | padding to general.alignment (default 32) | data: every tensor at a multiple of it |
// clang-format on
//
// Limits: the constants of GgufFile; counts also by what is left of the file; duplicate keys and tensor
// names, nested arrays, overlapping tensors and parts of split models are refused. Nothing is allocated that
// the file does not back.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <variant>

#include "base/mmap.h"
#include "formats/tensor_file.h"

namespace kv2 {

/// Value types as the file numbers them.
enum class GgufType : uint32_t {
  U8,
  I8,
  U16,
  I16,
  U32,
  I32,
  F32,
  Bool,
  String,
  Array,
  U64,
  I64,
  F64,
};

/// A metadata value. Integers of all widths become int64 (uint64 above its range is refused), floats become
/// double.
struct GgufValue {
  using Strings = std::vector<std::string>;
  std::variant<int64_t, double, bool, std::string, std::vector<int64_t>, std::vector<double>,
               std::vector<bool>, Strings>
      value;
  GgufType type = GgufType::I64;  // as stored; of the elements when `array`
  bool array = false;
  std::string type_text() const;  // "string", "array of float32", …
};

class GgufReader;

class GgufFile final : public TensorFile {
 public:
  static constexpr uint32_t kVersion = 3;
  static constexpr size_t kMaxStringBytes = size_t{64} << 20, kMaxArrayElements = size_t{16} << 20;
  static constexpr size_t kMaxKeyBytes = 65535, kMaxTensorNameBytes = 63, kMaxAlignment = size_t{1} << 20;
  static constexpr uint32_t kMaxDims = 4;

  /// Errors: Io, BadFile (truncated, corrupted: what was found and where), Unsupported (version, big endian).
  static std::unique_ptr<GgufFile> open(const std::string& path);
  /// The same on bytes that outlive the result (fuzzing, tests); `name` for messages.
  static std::unique_ptr<GgufFile> parse(std::span<const std::byte> bytes, const std::string& name);

  const std::vector<std::pair<std::string, GgufValue>>& metadata() const { return metadata_; }  // file order
  const GgufValue* find_key(std::string_view key) const;

  // Typed access. The plain form throws BadFile naming the key when it is absent or of another type; find_
  // returns nullopt when absent and throws when it has another type.
  int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;  // integers too
  const std::string& string(std::string_view key) const;
  std::optional<int64_t> find_integer(std::string_view key) const;
  std::optional<double> find_number(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  const std::string* find_string(std::string_view key) const;
  const std::vector<std::string>* find_strings(std::string_view key) const;
  std::optional<std::vector<int64_t>> find_integers(std::string_view key) const;
  std::optional<std::vector<double>> find_numbers(std::string_view key) const;

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view name) const override;
  std::span<const std::byte> raw(const TensorInfo& tensor) const override;
  void read_rows(const TensorInfo& tensor, int64_t row0, int64_t n, float* out) const override;
  std::string kind() const override { return "GGUF v3"; }
  void forget() const override {
    if (file_) file_->forget();
  }
  const std::string& name() const { return name_; }

 private:
  GgufFile() = default;
  void parse_all();
  void read_metadata(GgufReader& in, uint64_t n_keys);
  void read_tensor_table(GgufReader& in, uint64_t n_tensors);
  void place_tensors(size_t table_end);
  const GgufValue& require_key(std::string_view key) const;
  [[noreturn]] void wrong_type(std::string_view key, const GgufValue& value, std::string_view expected) const;

  std::string name_;
  std::unique_ptr<MappedFile> file_;
  std::span<const std::byte> bytes_;
  std::vector<std::pair<std::string, GgufValue>> metadata_;
  std::unordered_map<std::string, size_t> key_index_, tensor_index_;
  std::vector<TensorInfo> tensors_;
  std::vector<size_t> offsets_;  // absolute, of each tensor
};

}  // namespace kv2
