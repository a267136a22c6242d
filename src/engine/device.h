// The one place that knows which backends exist.
#pragma once

#include <memory>
#include <string>

#include "ops/backend.h"

namespace kv2 {

struct DeviceOptions {
  std::string device = "cpu";  // "cpu"; "cuda:0" in builds with CUDA; "reference" (scalar oracle, slow)
  int n_threads = 0;
  bool pin = false;  // of the CPU's threads: Pinning::OneEach
  LinearPrecision linear_precision = LinearPrecision::Auto;
  bool huge_pages = true;  // of the device cpu (CpuOptions); false is refused elsewhere
};
/// Throws Unsupported listing the devices of this build, BadArgument for options that a device does not have.
std::unique_ptr<Backend> open_device(const DeviceOptions& options);

}  // namespace kv2
