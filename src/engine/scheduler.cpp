// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduler.h"

#include <algorithm>

namespace kv2 {

std::vector<Share> plan_step(std::span<const int64_t> pending, const StepLimits& limits) {
  std::vector<Share> shares;
  int64_t rows = limits.max_rows, prompt = limits.chunk_tokens;
  for (size_t i = 0; i < pending.size() && rows > 0; i++) {
    if (pending[i] != 1) continue;
    shares.push_back({static_cast<int>(i), 1});
    rows--;
  }
  for (size_t i = 0; i < pending.size(); i++) {
    const int64_t n = std::min({pending[i], rows, prompt});
    if (pending[i] <= 1 || n <= 0) continue;
    shares.push_back({static_cast<int>(i), static_cast<int>(n)});
    rows -= n;
    prompt -= n;
  }
  return shares;
}

}  // namespace kv2
