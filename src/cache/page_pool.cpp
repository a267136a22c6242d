// SPDX-License-Identifier: Apache-2.0
#include "cache/page_pool.h"

#include "base/check.h"

namespace kv2 {

PagePool::PagePool(int64_t n_slots) {
  KV2_CHECK(n_slots >= 0 && n_slots <= INT32_MAX, "{} slots", n_slots);
  refs_.resize(n_slots, 0);
  kept_.resize(n_slots, 0);
  free_.reserve(n_slots);
  for (int64_t slot = n_slots; slot-- > 0;) free_.push_back(static_cast<int32_t>(slot));
}

int32_t PagePool::take() {
  KV2_CHECK(!free_.empty(), "no free page of {}: pages must be reserved before they are used", n_slots());
  const int32_t slot = free_.back();
  free_.pop_back();
  refs_[slot] = 1;
  return slot;
}

void PagePool::share(int32_t slot) {
  KV2_CHECK(refs(slot) > 0, "slot {} is free", slot);
  const bool before = idle(slot);
  refs_[slot]++;
  count_idle(slot, before);
}

void PagePool::drop(int32_t slot) {
  // The tree's own hold goes through unkeep().
  KV2_CHECK(refs(slot) > (kept(slot) ? 1 : 0), "slot {} has no holder to drop", slot);
  const bool before = idle(slot);
  if (--refs_[slot] == 0) free_.push_back(slot);
  count_idle(slot, before);
}

void PagePool::keep(int32_t slot) {
  KV2_CHECK(refs(slot) > 0 && !kept(slot), "slot {} is free or kept", slot);
  kept_[slot] = 1;
  refs_[slot]++;
}

void PagePool::unkeep(int32_t slot) {
  KV2_CHECK(kept(slot), "slot {} is not kept", slot);
  const bool before = idle(slot);
  kept_[slot] = 0;
  if (--refs_[slot] == 0) free_.push_back(slot);
  count_idle(slot, before);
}

void PagePool::count_idle(int32_t slot, bool before) {
  n_idle_ += static_cast<int>(idle(slot)) - static_cast<int>(before);
}

}  // namespace kv2
