// SPDX-License-Identifier: Apache-2.0
// PagePool: who holds which slot of one pool of equal pages. A slot is free or has holders (reference count);
// one of them may be the prefix tree ("kept"). A kept slot without another holder is idle: it can be had back
// at any time. Integers only: it knows neither bytes nor what a page contains.
#pragma once

#include <cstdint>
#include <vector>

namespace kv2 {

class PagePool {
 public:
  explicit PagePool(int64_t n_slots);

  /// A free slot, now with one holder. There must be one: admission is the caller's business.
  int32_t take();
  void share(int32_t slot);  // one holder more
  void drop(int32_t slot);   // one holder less; the last one frees the slot
  void keep(int32_t slot);   // the prefix tree becomes a holder
  void unkeep(int32_t slot);

  int refs(int32_t slot) const { return refs_.at(slot); }  // kept counts as one
  bool kept(int32_t slot) const { return kept_.at(slot) != 0; }
  bool idle(int32_t slot) const { return kept(slot) && refs(slot) == 1; }

  int64_t n_slots() const { return static_cast<int64_t>(refs_.size()); }
  int64_t n_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t n_used() const { return n_slots() - n_free(); }  // idle ones included
  int64_t n_idle() const { return n_idle_; }

 private:
  void count_idle(int32_t slot, bool before);

  std::vector<int32_t> refs_;
  std::vector<uint8_t> kept_;
  std::vector<int32_t> free_;  // a stack, so that recently used memory is used again
  int64_t n_idle_ = 0;
};

}  // namespace kv2
