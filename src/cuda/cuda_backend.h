// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: own kernels for pages and rows, cuBLASLt for linears, one stream of one device. Tables of
// pages (SequenceView) are device memory here.
#pragma once

#include <memory>

#include "ops/backend.h"

namespace kv2 {

struct CudaOptions {
  int device = 0;
  LinearPrecision precision = LinearPrecision::Auto;  // Auto: bf16
  /// Attention's work is cut for this many multiprocessors; 0: the device's. Changes no bit, as tests show.
  int n_multiprocessors = 0;
};

/// Throws Unsupported where there is no such device, its driver is too old, or this build has no code for it.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options);

}  // namespace kv2
