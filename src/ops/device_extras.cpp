// SPDX-License-Identifier: Apache-2.0
#include "ops/device_extras.h"

#include <vector>

#include "base/memory.h"
#include "ops/arg_max.h"

namespace kv2 {

bool has_own_memory(const Backend& backend) {
  return dynamic_cast<const OwnMemory*>(&backend) != nullptr;
}

bool has_clock(const Backend& backend) {
  return dynamic_cast<const DeviceClock*>(&backend) != nullptr;
}

size_t free_memory(const Backend& backend) {
  const auto* own = dynamic_cast<const OwnMemory*>(&backend);
  return own ? own->free_memory() : available_memory();
}

void export_sides(Backend& backend, const void* part, const LayerLayout& layer, const KvShape& shape,
                  std::span<std::byte> canonical) {
  backend.download(canonical.data(), part, canonical.size());
  if (auto* own = dynamic_cast<OwnSideOrder*>(&backend))
    own->sides_to_canonical(layer, shape, canonical.data());
}

void import_sides(Backend& backend, void* part, const LayerLayout& layer, const KvShape& shape,
                  std::span<const std::byte> canonical) {
  auto* order = dynamic_cast<OwnSideOrder*>(&backend);
  if (!order) return backend.upload(part, canonical.data(), canonical.size());
  std::vector<std::byte> own(canonical.begin(), canonical.end());
  order->sides_from_canonical(layer, shape, own.data());
  backend.upload(part, own.data(), own.size());
}

void run_step(Backend& backend, const std::function<void()>& ops) {
  if (auto* recorder = dynamic_cast<StepRecorder*>(&backend)) return recorder->run_step(ops);
  ops();
}

bool fused_heads(Backend& backend, const HeadsParams& p) {
  auto* fused = dynamic_cast<FusedHeads*>(&backend);
  return fused && fused->heads(p);
}

void arg_max(Backend& backend, const float* rows, int n_rows, int width, int32_t* best) {
  if (auto* own = dynamic_cast<DeviceArgMax*>(&backend)) return own->arg_max(rows, n_rows, width, best);
  std::vector<float> row(static_cast<size_t>(width));
  for (int i = 0; i < n_rows; i++) {
    backend.download(row.data(), rows + static_cast<size_t>(i) * width, row.size() * sizeof(float));
    best[i] = arg_max(row);
  }
}

}  // namespace kv2
