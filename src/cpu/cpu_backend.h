// SPDX-License-Identifier: Apache-2.0
// The CPU backend: linears through oneDNN on tiles of one thread team, everything else in Highway or plain
// loops.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/threads.h"
#include "ops/backend.h"

namespace kv2 {

struct CpuOptions {
  int n_threads = 0;  // 0: usable_cores()
  Pinning pinning = Pinning::Off;
  LinearPrecision precision = LinearPrecision::Auto;
  bool huge_pages = true;  // asked for where memory is large enough; off: to measure what they are worth
};

/// Throws Unsupported on a processor without AVX2 or NEON, and for Bf16 where oneDNN has no bf16 matmul.
std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options);

// For tests: the SIMD targets that this machine can run and this build has, best first; one of them forced
// for the whole process (also in quant), or 0 for the best again. Not while an op runs.
std::vector<int64_t> simd_targets();
std::string simd_target_name(int64_t target);
void force_simd_target(int64_t target);

}  // namespace kv2
