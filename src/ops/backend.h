// THE seam between numerics and machines: one device's memory and its dozen operations, all runtime values.
// `ops/reference` is the oracle of every op; src/cpu and src/cuda implement it at speed.
//
// What a backend promises (docs/equality.md):
//  - demote: codes, scales and offsets bit-identical to quant/int2 on the same bf16 rows;
//  - linear and attend: a row's result does not depend on the other rows of the batch, on how a prompt is cut
//    into chunks, or on the number of threads (fixed tile shapes, one order of summation and of page
//    merging);
//  - ops run in the order of the calls; sync() waits for all of them. One caller at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "ops/params.h"

namespace kv2 {

class ThreadTeam;

/// How a backend should keep and multiply weights.
enum class LinearPrecision : uint8_t {
  Auto,  // weights that the file codes: straight from the codes where the backend can (multiplies_codes);
         // others: bf16 where the machine has a fast path for it, f32 elsewhere
  F32,
  Bf16,
};

/// A weight matrix, packed for the backend. out = in·Wᵀ + bias.
class Linear {
 public:
  virtual ~Linear() = default;
  virtual int n_in() const = 0;
  virtual int n_out() const = 0;
  virtual size_t bytes() const = 0;  // of device memory
};

/// The same matrix as its file codes it: w = scale·(code − zero) + offset, where `block` consecutive inputs
/// of a row share scale and offset.
struct WeightCodes {
  int bits = 0;   // 0: not coded. Codes lie below 2^bits: 4, 6 or 8
  int block = 0;  // 16 or 32; divides n_in
  int zero = 0;
  bool has_offset = false;
  bool params_in_fp16 = false;  // fp16 holds every scale and offset exactly
  /// codes [n, n_in], scale [n, n_in / block], offset the same where there is one
  std::function<void(int row0, int n_rows, uint8_t* codes, float* scale, float* offset)> fill;
};

/// Rows of a matrix on demand, so that a large one never exists twice: fill(row0, n, out [n, n_in]).
struct LinearSource {
  int n_in = 0, n_out = 0;
  std::function<void(int row0, int n_rows, float* out)> fill;
  std::span<const float> bias;  // [n_out] or empty
  WeightCodes coded;            // only asked for by backends that multiply codes
};

class Backend {
 public:
  virtual ~Backend() = default;

  /// One line for the start-up table: device, instruction set, kernels and precision chosen, threads.
  virtual std::string describe() const = 0;
  /// "bf16" or "f32": what linear() multiplies in.
  virtual std::string linear_precision() const = 0;

  // Memory, 64-byte aligned. allocate throws OutOfMemory with the size asked for.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  virtual void upload(void* device, const void* host, size_t bytes) = 0;
  virtual void download(void* host, const void* device, size_t bytes) = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;  // device to device
  /// Rows of a matrix whose rows do not touch, device to device. Strides in bytes.
  virtual void copy_rows(void* to, size_t to_stride, const void* from, size_t from_stride, size_t row_bytes,
                         int n_rows) {
    for (int i = 0; i < n_rows; i++)
      copy(static_cast<std::byte*>(to) + i * to_stride, static_cast<const std::byte*>(from) + i * from_stride,
           row_bytes);
  }
  virtual void sync() = 0;
  /// Throws Unsupported where this backend cannot code and read pages of this layout, listing what it can.
  virtual void require_formats(const PageLayout& layout) const { static_cast<void>(layout); }

  /// Whether make_linear takes LinearSource::coded and keeps the weights in it.
  virtual bool multiplies_codes() const { return false; }
  /// Device bytes of such a linear without its bias; codes.fill is not called.
  virtual size_t coded_bytes(int /*n_in*/, int /*n_out*/, const WeightCodes& /*codes*/) const { return 0; }
  virtual std::unique_ptr<Linear> make_linear(const LinearSource& source) = 0;
  /// The token embedding; `make_linear` of the same source gives tied output weights. Kept in bf16 or f32; of
  /// a coded source a backend may keep source.fill instead and read rows when they are asked for: what it
  /// reads must outlive the embedding.
  virtual std::unique_ptr<Linear> make_embedding(const LinearSource& source) = 0;
  /// Device memory that linear() needs at most for batches of n_rows, so that it can be planned.
  virtual size_t scratch_bytes(int n_rows, int max_width, const KvShape& shape) const = 0;

  virtual void embed(const Linear& table, const EmbedParams& p) = 0;
  virtual void rms_norm(const RmsNormParams& p) = 0;
  virtual void linear(const Linear& weights, const LinearParams& p) = 0;
  virtual void rope(const RopeParams& p) = 0;
  virtual void transform(const TransformParams& p) = 0;
  virtual void append(const AppendParams& p) = 0;
  virtual void demote(const DemoteParams& p) = 0;
  virtual void attend(const AttendParams& p) = 0;
  virtual void swiglu(const SwigluParams& p) = 0;

  // The private layout of a full head page, and of a packed one of int2, against the canonical one
  // (docs/page-format.md), host memory on the right. Packed parts of other formats are canonical everywhere.
  virtual void export_full(const void* head_page, int head_dim, std::span<std::byte> canonical) = 0;
  virtual void import_full(void* head_page, int head_dim, std::span<const std::byte> canonical) = 0;
  virtual void export_packed(const void* head_page, const Int2Layout& layout,
                             std::span<std::byte> canonical) = 0;
  virtual void import_packed(void* head_page, const Int2Layout& layout,
                             std::span<const std::byte> canonical) = 0;
};

}  // namespace kv2
