// SPDX-License-Identifier: Apache-2.0
// Memory of the CPU backend: aligned blocks that know their size, and scratch that grows to the largest batch
// seen.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"

namespace kv2::cpu {

/// Off: no memory begins at a huge page or asks for one (CpuOptions::huge_pages).
enum class HugePages : uint8_t { Off, On };

/// 64-byte aligned memory; throws OutOfMemory naming the size. With HugePages::On memory of 4 MiB or more
/// begins at a huge page and asks for such: a decode step touches thousands of 4 KiB pages in an order of its
/// own, more than a TLB holds. What that reserves beyond `bytes`, up to 4 MiB, is never touched.
inline void* allocate_aligned(size_t bytes, HugePages huge_pages) {
  constexpr size_t kHuge = size_t{2} << 20;
  void* p = nullptr;
  const size_t rounded = bytes > SIZE_MAX - 64 ? 0 : (bytes + 63) / 64 * 64;
  if (rounded >= 2 * kHuge && rounded <= SIZE_MAX - kHuge && huge_pages == HugePages::On) {
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
  /// Empty, to grow.
  explicit AlignedBuffer(HugePages huge_pages = HugePages::On) : huge_pages_(huge_pages) {}
  explicit AlignedBuffer(size_t bytes, HugePages huge_pages = HugePages::On)
      : memory_(allocate_aligned(bytes, huge_pages)), bytes_(bytes), huge_pages_(huge_pages) {}
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : memory_(other.memory_), bytes_(other.bytes_), huge_pages_(other.huge_pages_) {
    other.memory_ = nullptr;
    other.bytes_ = 0;
  }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    std::swap(huge_pages_, other.huge_pages_);
    return *this;
  }
  ~AlignedBuffer() { std::free(memory_); }

  /// At least `bytes`; what was there is lost when it grows.
  void grow(size_t bytes) {
    if (bytes > bytes_) {
      *this = AlignedBuffer(huge_pages_);  // free first, so that both never exist at once
      *this = AlignedBuffer(bytes, huge_pages_);
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
  HugePages huge_pages_;
};

/// One buffer per worker of a team.
class WorkerScratch {
 public:
  WorkerScratch(int n_workers, HugePages huge_pages) {
    for (int i = 0; i < n_workers; i++) buffers_.emplace_back(huge_pages);
  }
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
