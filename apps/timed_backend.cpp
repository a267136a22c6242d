// SPDX-License-Identifier: Apache-2.0
#include "apps/timed_backend.h"

#include <algorithm>

namespace kv2::app {

void TimedBackend::start_step() {
  counting_ = true;
  calls_.clear();
}

void TimedBackend::record(const std::string& name, double seconds) {
  auto& calls = seconds_[name];
  const size_t call = calls_[name]++;
  if (call >= calls.size()) calls.resize(call + 1);
  calls[call].push_back(seconds);
}

std::vector<TimedBackend::Part> TimedBackend::parts() const {
  std::vector<Part> parts;
  for (const auto& [name, calls] : seconds_) {
    size_t n_steps = calls.front().size();
    for (const auto& call : calls) n_steps = std::min(n_steps, call.size());
    std::vector<double> sums(n_steps, 0.0);
    for (std::vector<double> call : calls) {
      std::sort(call.begin(), call.end());
      for (size_t k = 0; k < n_steps; k++) sums[k] += call[k];
    }
    parts.push_back({name, calls.size(), n_steps, Times::of(std::move(sums))});
  }
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.times.median() > b.times.median(); });
  return parts;
}

}  // namespace kv2::app
