// SPDX-License-Identifier: Apache-2.0
// The reference backend: host memory, canonical pages, and the bodies of ops.h behind the virtuals. Ops are
// done when they return, so sync() has nothing to wait for.
#include "ops/reference/reference.h"

#include <cstring>
#include <new>

#include "base/check.h"
#include "ops/reference/ops.h"

namespace kv2 {
namespace {

constexpr std::align_val_t kAlignment{64};

const reference::DenseLinear& dense(const Linear& weights) {
  const auto* own = dynamic_cast<const reference::DenseLinear*>(&weights);
  KV2_CHECK(own, "a linear of another backend");
  return *own;
}

void copy_exactly(void* to, const void* from, size_t bytes, size_t given) {
  KV2_CHECK(bytes == given, "a head page has {} bytes, {} given", bytes, given);
  std::memcpy(to, from, bytes);
}

class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(LinearPrecision precision) : bf16_(precision == LinearPrecision::Bf16) {}

  std::string describe() const override {
    return "reference: scalar, sums in double, " + linear_precision() + " linears, 1 thread";
  }
  std::string linear_precision() const override { return bf16_ ? "bf16" : "f32"; }

  void* allocate(size_t bytes) override {
    void* memory = ::operator new(bytes, kAlignment, std::nothrow);
    if (!memory) throw_error(ErrorCode::OutOfMemory, "cannot allocate {} bytes of host memory", bytes);
    return memory;
  }
  void release(void* memory) noexcept override { ::operator delete(memory, kAlignment); }
  void upload(void* device, const void* host, size_t bytes) override { move(device, host, bytes); }
  void download(void* host, const void* device, size_t bytes) override { move(host, device, bytes); }
  void copy(void* to, const void* from, size_t bytes) override { move(to, from, bytes); }
  void sync() override {}

  std::unique_ptr<Linear> make_linear(const LinearSource& source) override {
    return std::make_unique<reference::DenseLinear>(source, bf16_);
  }
  std::unique_ptr<Linear> make_embedding(const LinearSource& source) override { return make_linear(source); }
  size_t scratch_bytes(int, int, const KvShape&) const override { return 0; }

  void embed(const Linear& table, const EmbedParams& p) override { reference::embed(dense(table), p); }
  void rms_norm(const RmsNormParams& p) override { reference::rms_norm(p); }
  void linear(const Linear& weights, const LinearParams& p) override { reference::linear(dense(weights), p); }
  void rope(const RopeParams& p) override { reference::rope(p); }
  void transform(const TransformParams& p) override { reference::transform(p); }
  void append(const AppendParams& p) override { reference::append(p); }
  void demote(const DemoteParams& p) override { reference::demote(p); }
  void attend(const AttendParams& p) override { reference::attend(p); }
  void swiglu(const SwigluParams& p) override { reference::swiglu(p); }

  void export_full(const void* head_page, int head_dim, std::span<std::byte> canonical) override {
    copy_exactly(canonical.data(), head_page, full_bytes(head_dim), canonical.size());
  }
  void import_full(void* head_page, int head_dim, std::span<const std::byte> canonical) override {
    copy_exactly(head_page, canonical.data(), full_bytes(head_dim), canonical.size());
  }
  void export_packed(const void* head_page, const Int2Layout& layout,
                     std::span<std::byte> canonical) override {
    copy_exactly(canonical.data(), head_page, layout.bytes(), canonical.size());
  }
  void import_packed(void* head_page, const Int2Layout& layout,
                     std::span<const std::byte> canonical) override {
    copy_exactly(head_page, canonical.data(), layout.bytes(), canonical.size());
  }

 private:
  static size_t full_bytes(int head_dim) { return static_cast<size_t>(4) * kPageTokens * head_dim; }
  static void move(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memmove(to, from, bytes);
  }

  bool bf16_;
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend(LinearPrecision precision) {
  return std::make_unique<ReferenceBackend>(precision);
}

}  // namespace kv2
