// GGUF v3, memory-mapped: metadata and tensors, every length, offset, count, overlap and alignment checked before use.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <variant>

#include "base/mmap.h"
#include "formats/tensor_file.h"

namespace kv2 {

/// A metadata value. Integers of all widths become int64 (uint64 above its range is refused), floats become double.
struct GgufValue {
  using Strings = std::vector<std::string>;
  std::variant<int64_t, double, bool, std::string, std::vector<int64_t>, std::vector<double>, std::vector<bool>, Strings>
      value;
  std::string type_text() const;  // "string", "array of float32", …
};

class GgufFile final : public TensorFile {
 public:
  static constexpr uint32_t kVersion = 3;

  /// Errors: Io, BadFile (truncated, corrupted: what was found and where), Unsupported (version, big endian).
  static std::unique_ptr<GgufFile> open(const std::string& path);
  /// The same on bytes that outlive the result (fuzzing, tests); `name` for messages.
  static std::unique_ptr<GgufFile> parse(std::span<const std::byte> bytes, const std::string& name);

  const std::vector<std::pair<std::string, GgufValue>>& metadata() const { return metadata_; }  // file order
  const GgufValue* find_key(std::string_view key) const;

  // Typed access. The plain form throws BadFile naming the key when it is absent or of another type; find_ returns
  // nullopt when absent and throws when it has another type.
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
  const std::string& name() const { return name_; }

 private:
  GgufFile() = default;
  void parse_all();

  std::string name_;
  std::unique_ptr<MappedFile> file_;
  std::span<const std::byte> bytes_;
  std::vector<std::pair<std::string, GgufValue>> metadata_;
  std::unordered_map<std::string, size_t> key_index_, tensor_index_;
  std::vector<TensorInfo> tensors_;
  std::vector<size_t> offsets_;  // absolute, of each tensor
};

}  // namespace kv2
