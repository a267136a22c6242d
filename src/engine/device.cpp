// SPDX-License-Identifier: Apache-2.0
// The only file that includes backends.
#include "engine/device.h"

#include "base/check.h"
#include "cpu/cpu_backend.h"
#include "ops/reference/reference.h"

namespace kv2 {

std::unique_ptr<Backend> open_device(const DeviceOptions& options) {
  if (options.n_threads < 0)
    throw_error(ErrorCode::BadArgument, "threads is {}, supported are 0 (all usable cores) and above",
                options.n_threads);
  if (options.device == "cpu")
    return make_cpu_backend({.n_threads = options.n_threads, .precision = options.linear_precision});
  if (options.device == "reference") return make_reference_backend(options.linear_precision);
  throw_error(ErrorCode::Unsupported, "device '{}' is not in this build; it has cpu, reference",
              options.device);
}

}  // namespace kv2
