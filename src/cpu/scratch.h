// SPDX-License-Identifier: Apache-2.0
// Memory of the CPU backend: aligned blocks that know their size, and scratch that grows to the largest batch
// seen.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"

namespace kv2::cpu {

/// KV2_HUGE_PAGES=0 in the environment: no memory begins at a huge page or asks for one.
inline bool wants_huge_pages() {
  const char* wish = std::getenv("KV2_HUGE_PAGES");
  return !wish || std::string_view(wish) != "0";
}

/// 64-byte aligned memory; throws OutOfMemory naming the size. From 4 MiB on it begins at a huge page and
/// asks for such: a decode step touches thousands of 4 KiB pages in an order of its own, more than a TLB
/// holds. What that reserves beyond `bytes`, up to 4 MiB, is never touched.
inline void* allocate_aligned(size_t bytes) {
  constexpr size_t kHuge = size_t{2} << 20;
  void* p = nullptr;
  const size_t rounded = bytes > SIZE_MAX - 64 ? 0 : (bytes + 63) / 64 * 64;
  if (rounded >= 2 * kHuge && rounded <= SIZE_MAX - kHuge && wants_huge_pages()) {
    p = std::aligned_alloc(kHuge, (rounded + kHuge - 1) / kHuge * kHuge);
    // The whole huge pages of what was asked for; a wish, so there is no error to handle.
    if (p) ::madvise(p, rounded / kHuge * kHuge, MADV_HUGEPAGE);
  } else if (rounded != 0) {
    p = std::aligned_alloc(64, rounded);
  }
  if (bytes == 0) p = std::aligned_alloc(64, 64);
  if (!p)
    throw_error(ErrorCode::OutOfMemory, "no memory for {} bytes ({:.2f} GiB)", bytes,
                static_cast<double>(bytes) / (1u << 30));
  return p;
}

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes) : memory_(allocate_aligned(bytes)), bytes_(bytes) {}
  AlignedBuffer(AlignedBuffer&& other) noexcept : memory_(other.memory_), bytes_(other.bytes_) {
    other.memory_ = nullptr;
    other.bytes_ = 0;
  }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~AlignedBuffer() { std::free(memory_); }

  /// At least `bytes`; what was there is lost when it grows.
  void grow(size_t bytes) {
    if (bytes > bytes_) {
      *this = AlignedBuffer();  // free first, so that both never exist at once
      *this = AlignedBuffer(bytes);
    }
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

/// One buffer per worker of a team.
class WorkerScratch {
 public:
  explicit WorkerScratch(int n_workers) : buffers_(static_cast<size_t>(n_workers)) {}
  void grow(size_t bytes) {
    for (AlignedBuffer& b : buffers_) b.grow(bytes);
  }
  template <class T>
  T* of(int worker) const {
    return buffers_[static_cast<size_t>(worker)].as<T>();
  }

 private:
  std::vector<AlignedBuffer> buffers_;
};

}  // namespace kv2::cpu
