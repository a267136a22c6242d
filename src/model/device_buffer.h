// SPDX-License-Identifier: Apache-2.0
// DeviceBuffer: a piece of a backend's memory that releases itself. The backend outlives it.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "ops/backend.h"

namespace kv2 {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Backend& backend, size_t bytes)
      : backend_(&backend), memory_(backend.allocate(bytes)), bytes_(bytes) {}
  ~DeviceBuffer() {
    if (memory_ != nullptr) backend_->release(memory_);
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : backend_(other.backend_),
        memory_(std::exchange(other.memory_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  static DeviceBuffer of(Backend& backend, std::span<const float> values) {
    DeviceBuffer buffer(backend, values.size_bytes());
    backend.upload(buffer.memory_, values.data(), values.size_bytes());
    return buffer;
  }

  float* floats() const { return static_cast<float*>(memory_); }
  std::byte* data() const { return static_cast<std::byte*>(memory_); }
  size_t bytes() const { return bytes_; }

 private:
  Backend* backend_ = nullptr;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace kv2
