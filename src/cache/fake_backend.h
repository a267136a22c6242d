// SPDX-License-Identifier: Apache-2.0
// FakeBackend (tests only): a backend whose pages hold one integer per row instead of K and V, so that a test
// can say which row of which sequence every page holds, in which form. It counts allocations. Everything else
// throws Bug.
#pragma once

#include <cstring>
#include <map>
#include <new>

#include "base/check.h"
#include "ops/backend.h"

namespace kv2 {

class FakeBackend : public Backend {
 public:
  static constexpr int32_t kPackedTag =
      0x40000000;  // what demote adds to every row, so that forms never look alike

  size_t live_bytes = 0;    // allocated now
  size_t limit = SIZE_MAX;  // allocate beyond it throws OutOfMemory
  int64_t n_demoted = 0;    // pages, counted in layer 0

  void* allocate(size_t bytes) override {
    if (bytes > limit - live_bytes) throw_error(ErrorCode::OutOfMemory, "{} bytes asked for", bytes);
    void* memory = ::operator new (bytes, std::align_val_t{64});
    std::memset(memory, 0xAB, bytes);
    sizes_[memory] = bytes;
    live_bytes += bytes;
    return memory;
  }
  void release(void* memory) noexcept override {
    live_bytes -= sizes_[memory];
    sizes_.erase(memory);
    ::operator delete (memory, std::align_val_t{64});
  }
  void upload(void* device, const void* host, size_t bytes) override { std::memcpy(device, host, bytes); }
  void download(void* host, const void* device, size_t bytes) override { std::memcpy(host, device, bytes); }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void sync() override {}

  static int32_t* full_rows(const KvView& kv, int layer, int head, int32_t slot) {
    return reinterpret_cast<int32_t*>(kv.full + slot * kv.layout.full_page_bytes() +
                                      kv.layout.full_offset(layer, head));
  }
  static int32_t* packed_rows(const KvView& kv, int layer, int head, int32_t slot) {
    return reinterpret_cast<int32_t*>(kv.packed + slot * kv.layout.packed_page_bytes() +
                                      kv.layout.packed_offset(layer, head));
  }

  /// A row's integer is the first number of its K; its V must say the same.
  void append(const AppendParams& p) override {
    const KvShape& shape = p.kv.layout.shape;
    for (const SequenceView& s : p.sequences) {
      for (int i = 0; i < s.n_rows; i++) {
        const int64_t pos = s.first_pos + i;
        const int32_t slot = s.full_pages[pos / kPageTokens];
        KV2_CHECK(slot >= 0, "position {} has no page", pos);
        for (int head = 0; head < shape.n_kv_heads; head++) {
          const size_t at = (static_cast<size_t>(s.first_row + i) * shape.n_kv_heads + head) * shape.head_dim;
          KV2_CHECK(p.k[at] == p.v[at]);
          full_rows(p.kv, p.layer, head, slot)[pos % kPageTokens] = static_cast<int32_t>(p.k[at]);
        }
      }
    }
  }
  void demote(const DemoteParams& p) override {
    if (p.layer == 0) n_demoted += p.pages.size();
    for (const Demotion& d : p.pages)
      for (int head = 0; head < p.kv.layout.shape.n_kv_heads; head++)
        for (int i = 0; i < kPageTokens; i++)
          packed_rows(p.kv, p.layer, head, d.packed_page)[i] =
              full_rows(p.kv, p.layer, head, d.full_page)[i] + kPackedTag;
  }
  void export_full(const void* page, int, std::span<std::byte> out) override {
    std::memcpy(out.data(), page, out.size());
  }
  void export_packed(const void* page, const Int2Layout&, std::span<std::byte> out) override {
    std::memcpy(out.data(), page, out.size());
  }

  std::string describe() const override { return "fake"; }
  std::string linear_precision() const override { return "f32"; }
  size_t scratch_bytes(int, int, const KvShape&) const override { return 0; }
  std::unique_ptr<Linear> make_linear(const LinearSource&) override { unused(); }
  std::unique_ptr<Linear> make_embedding(const LinearSource&) override { unused(); }
  void embed(const Linear&, const EmbedParams&) override { unused(); }
  void rms_norm(const RmsNormParams&) override { unused(); }
  void linear(const Linear&, const LinearParams&) override { unused(); }
  void rope(const RopeParams&) override { unused(); }
  void transform(const TransformParams&) override { unused(); }
  void attend(const AttendParams&) override { unused(); }
  void swiglu(const SwigluParams&) override { unused(); }
  void import_full(void*, int, std::span<const std::byte>) override { unused(); }
  void import_packed(void*, const Int2Layout&, std::span<const std::byte>) override { unused(); }

 private:
  [[noreturn]] static void unused() { throw Error(ErrorCode::Bug, "the cache does not compute"); }
  std::map<void*, size_t> sizes_;
};

}  // namespace kv2
