// SPDX-License-Identifier: Apache-2.0
// The GPU that a backend runs on, and a stream of its own there.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "cuda/cuda_check.h"

namespace kv2::cuda {

struct DeviceInfo {
  std::string name;
  int major = 0, minor = 0, n_multiprocessors = 0;
  size_t memory = 0;
};

/// Makes cuda:`device` the current one. Errors: one line for each way in which there is no usable device.
DeviceInfo open_gpu(int device);

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace kv2::cuda
