// SPDX-License-Identifier: Apache-2.0
// Memory of weights, cut from chunks of whole huge pages. A layer's matrices are smaller than a huge page, so
// allocated one by one they lie in pages of 4 KiB: 23,000 of them for 92 MiB, all walked through in every
// step, each a miss of the TLB (on a virtual machine one of two levels) and an end for the prefetcher.
#pragma once

#include <cstddef>
#include <memory>

#include "cpu/scratch.h"

namespace kv2::cpu {

class WeightMemory {
 public:
  explicit WeightMemory(HugePages huge_pages) : huge_pages_(huge_pages) {}

  /// 64-byte aligned, uninitialised; a chunk is released with the last piece of it, the newest one with this
  /// object. One caller at a time.
  std::shared_ptr<std::byte> take(size_t bytes) {
    const size_t size = (bytes + 63) / 64 * 64;
    if (size > kChunk / 2 || huge_pages_ == HugePages::Off) {  // a chunk of its own
      const auto own = std::make_shared<AlignedBuffer>(size, huge_pages_);
      return {own, own->as<std::byte>()};
    }
    if (!chunk_ ||
        used_ + size > kChunk) {  // what is left is untouched, so at most one huge page of it is memory
      chunk_ = std::make_shared<AlignedBuffer>(kChunk, huge_pages_);
      used_ = 0;
    }
    used_ += size;
    return {chunk_, chunk_->as<std::byte>() + (used_ - size)};
  }

 private:
  static constexpr size_t kChunk = size_t{32} << 20;
  const HugePages huge_pages_;
  std::shared_ptr<AlignedBuffer> chunk_;
  size_t used_ = 0;
};

}  // namespace kv2::cpu
