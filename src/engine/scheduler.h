// SPDX-License-Identifier: Apache-2.0
// Which rows a step computes. Pure integers: decode rows first, then prompt chunks in order of arrival. Since
// results do not depend on how a prompt is cut, a schedule changes times and never text.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kv2 {

/// Rows that one running sequence gets in a step.
struct Share {
  int index;   // into `pending`
  int n_rows;  // >= 1
};

struct StepLimits {
  int max_rows = 0;      // of one forward
  int chunk_tokens = 0;  // prompt tokens of one step, all sequences together
};

/// pending[i]: tokens of sequence i that are not in the cache yet, in order of admission; 1 is a decode row.
std::vector<Share> plan_step(std::span<const int64_t> pending, const StepLimits& limits);

}  // namespace kv2
