// SPDX-License-Identifier: Apache-2.0
// For tests: runs a body once per SIMD target of this machine.
#pragma once

#include <gtest/gtest.h>

#include "cpu/cpu_backend.h"

namespace kv2::cpu {

template <class Body>
void for_each_simd_target(const Body& body) {
  for (const int64_t target : simd_targets()) {
    force_simd_target(target);
    SCOPED_TRACE(simd_target_name(target));
    body();
    force_simd_target(0);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace kv2::cpu
