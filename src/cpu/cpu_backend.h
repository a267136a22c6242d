// The CPU backend: linears through oneDNN on tiles of one thread team, everything else in Highway or plain loops.
#pragma once

#include <memory>

#include "ops/backend.h"

namespace kv2 {

struct CpuOptions {
  int n_threads = 0;  // 0: usable_cores()
  LinearPrecision precision = LinearPrecision::Auto;
};

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options);

}  // namespace kv2
