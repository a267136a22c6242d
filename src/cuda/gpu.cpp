// SPDX-License-Identifier: Apache-2.0
#include "cuda/gpu.h"

#include <fmt/format.h>

#include "cuda/kernels.h"

namespace kv2::cuda {

DeviceInfo open_gpu(int device) {
  int n_devices = 0, driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const auto version = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
  const cudaError_t status = cudaGetDeviceCount(&n_devices);
  if (driver == 0 || status == cudaErrorNoDevice)
    throw_error(ErrorCode::Unsupported, "no NVIDIA GPU is usable here ({}); use --device cpu",
                driver == 0 ? "no driver is loaded" : cudaGetErrorString(status));
  if (status == cudaErrorInsufficientDriver)
    throw_error(
        ErrorCode::Unsupported,
        "the NVIDIA driver supports CUDA {}, this build needs {}; update the driver or use --device cpu",
        version(driver), version(runtime));
  check(status, "cudaGetDeviceCount");
  if (device < 0 || device >= n_devices)
    throw_error(ErrorCode::BadArgument, "device cuda:{} is not here; there are cuda:0 to cuda:{}", device,
                n_devices - 1);
  check(cudaSetDevice(device), "cudaSetDevice");
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  if (!has_code_for_this_device())
    throw_error(ErrorCode::Unsupported,
                "this build has no code for {} (compute capability {}.{}); configure with "
                "-DKV2_CUDA_ARCHITECTURES={}{}",
                properties.name, properties.major, properties.minor, properties.major, properties.minor);
  return {properties.name, properties.major, properties.minor, properties.multiProcessorCount,
          properties.totalGlobalMem};
}

}  // namespace kv2::cuda
