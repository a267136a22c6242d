// SPDX-License-Identifier: Apache-2.0
#include "ops/device_extras.h"

#include "base/memory.h"

namespace kv2 {

size_t free_memory(const Backend& backend) {
  const auto* own = dynamic_cast<const OwnMemory*>(&backend);
  return own ? own->free_memory() : available_memory();
}

void run_step(Backend& backend, const std::function<void()>& ops) {
  if (auto* recorder = dynamic_cast<StepRecorder*>(&backend)) return recorder->run_step(ops);
  ops();
}

}  // namespace kv2
