// SPDX-License-Identifier: Apache-2.0
// DeviceSlab: one allocation of a backend, released with its owner. Empty for zero bytes.
#pragma once

#include <cstddef>

#include "ops/backend.h"

namespace kv2 {

class DeviceSlab {
 public:
  DeviceSlab(Backend& backend, size_t bytes)
      : backend_(backend), data_(bytes > 0 ? static_cast<std::byte*>(backend.allocate(bytes)) : nullptr) {}
  ~DeviceSlab() {
    if (data_) backend_.release(data_);
  }
  DeviceSlab(const DeviceSlab&) = delete;
  DeviceSlab& operator=(const DeviceSlab&) = delete;

  std::byte* data() const { return data_; }

 private:
  Backend& backend_;
  std::byte* data_;
};

}  // namespace kv2
