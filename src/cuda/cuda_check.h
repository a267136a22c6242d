// SPDX-License-Identifier: Apache-2.0
// Errors of the CUDA runtime and of cuBLAS as kv2::Error. Host code only.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "base/check.h"

namespace kv2::cuda {

/// A call that can only fail when the device or this program is broken.
inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) [[unlikely]]
    throw_error(ErrorCode::Io, "CUDA: {} failed: {}", what, cudaGetErrorString(status));
}
inline void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]]
    throw_error(ErrorCode::Io, "cuBLAS: {} failed: {}", what, cublasLtGetStatusString(status));
}
/// After a kernel's launch.
inline void check_launch(const char* op) {
  check(cudaGetLastError(), op);
}

}  // namespace kv2::cuda
