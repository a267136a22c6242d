// SPDX-License-Identifier: Apache-2.0
// What every fuzz target shares: input costs a kv2::Error at most. Error{Bug} is a finding, as is any other
// exception.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

#include "kv2/error.h"

namespace kv2::fuzz {

template <class F>
void expect_error_at_most(F&& action) {
  try {
    action();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::Bug) return;
    std::fprintf(stderr, "%s\n", e.what());
    std::abort();
  }
}

}  // namespace kv2::fuzz
