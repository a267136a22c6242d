// SPDX-License-Identifier: Apache-2.0
// Memory of the CUDA backend: buffers that free themselves and grow, and Staging, the way from host arguments
// (tokens, positions, plans) to the device without waiting for it. One stream, one thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kv2::cuda {

/// cudaMalloc with an OutOfMemory that says what was asked for and what is free.
void* allocate_device(size_t bytes);

/// Pinned host memory.
void* allocate_pinned(size_t bytes);

/// Memory that only grows; contents are lost when it does.
template <void* (*kAllocate)(size_t), cudaError_t (*kFree)(void*)>
class GrowingBuffer {
 public:
  GrowingBuffer() = default;
  ~GrowingBuffer() { kFree(memory_); }
  GrowingBuffer(const GrowingBuffer&) = delete;
  GrowingBuffer& operator=(const GrowingBuffer&) = delete;

  /// At least `bytes`. Growing waits for the device.
  void* reserve(size_t bytes);
  size_t bytes() const { return bytes_; }
  const void* data() const { return memory_; }

 private:
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

using Buffer = GrowingBuffer<allocate_device, cudaFree>;
/// For small results, which come back without a stop on the way.
using HostBuffer = GrowingBuffer<allocate_pinned, cudaFreeHost>;
extern template class GrowingBuffer<allocate_device, cudaFree>;
extern template class GrowingBuffer<allocate_pinned, cudaFreeHost>;

/// A ring of pinned host memory with its twin on the device. put() copies host values in and enqueues their
/// transfer; the pointer is good for kernels enqueued before the ring has gone round. What was put under the
/// same key and has not changed is not sent again: all layers of a step ask for the same positions and plans.
/// Where `version` is not 0, another version says whether it has.
class Staging {
 public:
  enum class Key { Tokens, Positions, Frequencies, Append, Demote, Attend, Segments, kCount };

  explicit Staging(cudaStream_t stream);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  template <class T>
  const T* put(Key key, std::span<const T> values, uint64_t version = 0) {
    return static_cast<const T*>(put_bytes(key, values.data(), values.size_bytes(), version));
  }
  size_t bytes() const { return kSegments * segment_bytes_; }

 private:
  static constexpr int kSegments = 4;
  struct Known {
    std::vector<std::byte> bytes;
    const void* device = nullptr;
    uint64_t segment = 0;  // counted from the start, never reused
    uint64_t version = 0;
  };

  const void* put_bytes(Key key, const void* values, size_t bytes, uint64_t version);
  void enter_next_segment();
  void resize(size_t segment_bytes);
  void release() noexcept;

  cudaStream_t stream_;
  size_t segment_bytes_ = 0, used_ = 0;  // used of the open segment
  uint64_t segment_ = 0;
  std::byte *host_ = nullptr, *device_ = nullptr;
  cudaEvent_t left_[kSegments] = {};
  Known known_[static_cast<int>(Key::kCount)];
};

}  // namespace kv2::cuda
