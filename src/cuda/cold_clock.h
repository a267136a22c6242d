// SPDX-License-Identifier: Apache-2.0
// Times what is enqueued, with the L2 full of something else: for benches (DeviceClock of device_extras.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

#include "cuda/device_memory.h"

namespace kv2::cuda {

class ColdClock {
 public:
  explicit ColdClock(cudaStream_t stream) : stream_(stream) {}
  ~ColdClock();
  ColdClock(const ColdClock&) = delete;
  ColdClock& operator=(const ColdClock&) = delete;

  double seconds(const std::function<void()>& ops);
  void read_all(const void* memory, size_t bytes);

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  Buffer flush_, sink_;
};

}  // namespace kv2::cuda
