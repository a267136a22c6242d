// SPDX-License-Identifier: Apache-2.0
// The only file that includes backends.
#include "engine/device.h"

#include "base/check.h"
#include "cpu/cpu_backend.h"
#include "ops/reference/reference.h"
#if KV2_CUDA
#include <charconv>

#include "cuda/cuda_backend.h"
#endif

namespace kv2 {
namespace {

#if KV2_CUDA
constexpr const char* kDevices = "cpu, cuda:0, reference";

/// "cuda" and "cuda:3".
std::unique_ptr<Backend> open_cuda(const DeviceOptions& options) {
  const std::string_view index = std::string_view(options.device).substr(4);
  int device = 0;
  if (!index.empty()) {
    const char* end = index.data() + index.size();
    const auto [at, error] = std::from_chars(index.data() + 1, end, device);
    if (index.front() != ':' || error != std::errc() || at != end || device < 0)
      throw_error(ErrorCode::BadArgument, "device '{}' is not understood; a GPU is cuda or cuda:N",
                  options.device);
  }
  return make_cuda_backend({.device = device, .precision = options.linear_precision});
}
#else
constexpr const char* kDevices = "cpu, reference";

std::unique_ptr<Backend> open_cuda(const DeviceOptions& options) {
  throw_error(ErrorCode::Unsupported,
              "device '{}' needs a build with CUDA: configure with -DKV2_CUDA=ON; this build has {}",
              options.device, kDevices);
}
#endif

}  // namespace

std::unique_ptr<Backend> open_device(const DeviceOptions& options) {
  if (options.n_threads < 0)
    throw_error(ErrorCode::BadArgument, "threads is {}, supported are 0 (all usable cores) and above",
                options.n_threads);
  if (options.device == "cpu")
    return make_cpu_backend({.n_threads = options.n_threads,
                             .pinning = options.pin ? Pinning::OneEach : Pinning::Off,
                             .precision = options.linear_precision,
                             .huge_pages = options.huge_pages});
  if (!options.huge_pages)
    throw_error(ErrorCode::BadArgument,
                "huge pages can be turned off on the device cpu alone, device '{}' has none of kv2's",
                options.device);
  if (options.pin)
    throw_error(ErrorCode::BadArgument, "threads are pinned on the device cpu alone, device '{}' has none",
                options.device);
  if (options.device == "reference") return make_reference_backend(options.linear_precision);
  if (options.device.starts_with("cuda")) return open_cuda(options);
  throw_error(ErrorCode::Unsupported, "device '{}' is not in this build; it has {}", options.device,
              kDevices);
}

}  // namespace kv2
