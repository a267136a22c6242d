// SPDX-License-Identifier: Apache-2.0
// Kernels that begin while the one before is still running (programmatic dependent launch, from sm_90 on; a
// plain launch before). Such a kernel may read what no kernel of the step writes (weights) at once, and
// everything else only after wait_for_inputs(), which every thread calls before it ends: then all kernels
// before have ended, and what they wrote is there.
#pragma once

#include <cuda_runtime.h>

namespace kv2::cuda {

__device__ __forceinline__ void wait_for_inputs() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
/// The next kernel may take whatever room is left on a multiprocessor from now on.
__device__ __forceinline__ void let_next_begin() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

/// Of the device that this process uses.
inline bool can_overlap() {
  static const bool can = [] {
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major >= 9;
  }();
  return can;
}

template <class... Parameters, class... Arguments>
void launch_overlapped(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
                       cudaStream_t stream, Arguments... arguments) {
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = can_overlap() ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace kv2::cuda
