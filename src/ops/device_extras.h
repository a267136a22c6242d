// SPDX-License-Identifier: Apache-2.0
// What only some backends have: memory of their own, and steps that are recorded and replayed. A backend
// implements the interface beside Backend; callers use the functions, which work with every backend.
#pragma once

#include <cstddef>
#include <functional>

#include "ops/backend.h"

namespace kv2 {

class OwnMemory {
 public:
  virtual ~OwnMemory() = default;
  virtual size_t free_memory() const = 0;
};

class StepRecorder {
 public:
  virtual ~StepRecorder() = default;
  virtual void run_step(const std::function<void()>& ops) = 0;
};

/// Bytes that allocate() can still give: the device's, or the host's.
size_t free_memory(const Backend& backend);

/// Runs `ops`, which calls ops of this backend and nothing else of it, perhaps more than once: a backend may
/// record a step and replay it where only what the host hands over (tokens, positions, pages, plans) differs.
/// `ops` must not look at results.
void run_step(Backend& backend, const std::function<void()>& ops);

}  // namespace kv2
