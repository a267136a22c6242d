// TensorFile: named tensors of a model file, decoded to float on demand. GGUF and Hugging Face directories
// both present themselves as this. Thread-safe for reading once opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kv2 {

struct TensorInfo {
  std::string name;
  std::string type;            // "Q4_1", "BF16", … as files name it
  std::vector<int64_t> shape;  // row-major, slowest first: a matrix is [n_out, n_in] for both formats
  size_t bytes = 0;            // encoded

  int64_t n_elements() const {
    int64_t n = 1;
    for (int64_t s : shape) n *= s;
    return n;
  }
};

class TensorFile {
 public:
  virtual ~TensorFile() = default;
  virtual const std::vector<TensorInfo>& tensors() const = 0;
  /// nullptr when absent.
  virtual const TensorInfo* find(std::string_view name) const = 0;
  /// The encoded bytes, in the file's own order.
  virtual std::span<const std::byte> raw(const TensorInfo& tensor) const = 0;
  /// Rows [row0, row0 + n) of a matrix (or n elements of a vector from row0) as float; out [n, row length].
  /// Errors: Unsupported for a type that cannot be decoded (lists those that can).
  virtual void read_rows(const TensorInfo& tensor, int64_t row0, int64_t n, float* out) const = 0;
  /// "GGUF v3" or "Hugging Face directory", for messages.
  virtual std::string kind() const = 0;
  /// Gives back what reading has left in memory; reading again is slower, not wrong.
  virtual void forget() const {}
};

}  // namespace kv2
