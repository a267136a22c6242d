// SPDX-License-Identifier: Apache-2.0
// Memory of weights, cut from chunks of whole huge pages. A layer's matrices are smaller than a huge page, so
// allocated one by one they lie in pages of 4 KiB: 23,000 of them for 92 MiB, all walked through in every
// step, each a miss of the TLB (on a virtual machine one of two levels) and an end for the prefetcher.
// A piece that is released while others of its chunk live is given out again for one of its size: matrices
// that are made anew (Model::absorb_values) are no more memory than before.
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "cpu/scratch.h"

namespace kv2::cpu {

class WeightMemory {
 public:
  explicit WeightMemory(HugePages huge_pages) : huge_pages_(huge_pages) {}

  /// 64-byte aligned, uninitialised; a chunk is released with the last piece of it, the newest one with this
  /// object. One caller at a time, of releases too.
  std::shared_ptr<std::byte> take(size_t bytes) {
    const size_t size = (bytes + 63) / 64 * 64;
    if (size > kChunk / 2 || huge_pages_ == HugePages::Off) {  // a chunk of its own
      const auto own = std::make_shared<AlignedBuffer>(size, huge_pages_);
      return {own, own->as<std::byte>()};
    }
    if (auto again = released(size)) return again;
    if (!chunk_ ||
        used_ + size > kChunk) {  // what is left is untouched, so at most one huge page of it is memory
      std::erase_if(*free_, [](const auto& piece) { return piece.second.chunk.expired(); });
      chunk_ = std::make_shared<AlignedBuffer>(kChunk, huge_pages_);
      used_ = 0;
    }
    used_ += size;
    return piece(chunk_, used_ - size, size);
  }

 private:
  struct Piece {
    std::weak_ptr<AlignedBuffer> chunk;  // free pieces alone do not keep it
    size_t at;
  };
  using Free = std::multimap<size_t, Piece>;  // by size

  std::shared_ptr<std::byte> released(size_t size) {
    for (auto at = free_->lower_bound(size); at != free_->end() && at->first == size; at = free_->erase(at))
      if (const auto chunk = at->second.chunk.lock()) {
        const size_t offset = at->second.at;
        free_->erase(at);
        return piece(chunk, offset, size);
      }
    return nullptr;
  }
  std::shared_ptr<std::byte> piece(const std::shared_ptr<AlignedBuffer>& chunk, size_t at, size_t size) {
    return {chunk->as<std::byte>() + at, [chunk, at, size, free = std::weak_ptr(free_)](std::byte*) {
              if (const auto list = free.lock()) list->emplace(size, Piece{chunk, at});
            }};
  }

  static constexpr size_t kChunk = size_t{32} << 20;
  const HugePages huge_pages_;
  std::shared_ptr<Free> free_ = std::make_shared<Free>();
  std::shared_ptr<AlignedBuffer> chunk_;
  size_t used_ = 0;
};

}  // namespace kv2::cpu
