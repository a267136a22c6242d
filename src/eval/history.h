// SPDX-License-Identifier: Apache-2.0
// Where a method's history begins: judges of texts that end before it would judge bf16 under its name.
#pragma once

#include "ops/params.h"

namespace kv2 {

/// Queries at positions from here on read codes; INT64_MAX for bf16.
inline int64_t first_position_with_history(const CacheSpec& s) {
  return Visibility{s.sink_pages(), s.recent_pages(), s.method.quantized()}.first_position_with_history();
}

}  // namespace kv2
