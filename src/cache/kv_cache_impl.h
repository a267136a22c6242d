// SPDX-License-Identifier: Apache-2.0
// The inside of KvCache, shared by kv_cache.cpp (sequences, reservations, memory) and kv_cache_step.cpp (one
// forward).
//
// Reservations are promises, not slots: every sequence has a promise of p full and q packed pages, and
//     held by it <= its promise,      sum of promises + idle pages of the prefix tree <= slots of the pool
// hold after every call. A page that is shared counts in each holder's promise, so the slots in use never
// exceed the left side and a sequence that is below its promise always finds a free slot.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cache/device_factors.h"
#include "cache/device_slab.h"
#include "cache/device_transforms.h"
#include "cache/kv_cache.h"
#include "cache/page_pool.h"
#include "cache/page_table.h"
#include "cache/prefix_tree.h"

namespace kv2 {

struct KvCache::Impl {
  struct Promise {
    int64_t full = 0, packed = 0;
  };
  struct Sequence {
    explicit Sequence(int64_t n_pages) : table(n_pages) {}
    bool open = false;
    uint64_t salt = 0;
    int64_t n_tokens = 0;
    int64_t target = 0;      // tokens that are reserved
    int64_t full_until = 0;  // end of the prompt under PrefillPolicy::Exact
    int64_t n_released = 0;  // pages from the first behind the sink whose full form was let go
    Promise promise;
    PageTable table;
    std::vector<int32_t> tokens;   // to be remembered as their pages become complete
    Slice step;                    // of the forward in progress; n_rows 0: none
    std::vector<int64_t> demoted;  // pages whose codes that forward makes
  };

  Impl(Backend& backend, const CacheSpec& spec, const KvShape& shape, const CacheCapacity& capacity,
       FittedMethod fitted);

  Sequence& at(SequenceId id);
  PagePool& pool(Form form) { return form == Form::Full ? full : packed; }
  bool exact() const { return spec.prefill == PrefillPolicy::Exact && plan.rule.quantized; }

  // kv_cache.cpp
  Promise need(int64_t n_tokens, int64_t target) const;
  /// Replaces a promise by a larger or smaller one, evicting idle pages of the tree; false: no room, nothing
  /// changed.
  bool promise(Sequence& s, const Promise& wanted);
  void make_room();
  void drop_pages(Sequence& s);
  void remember(Sequence& s);
  std::byte* full_page(int32_t slot) { return full_slab.data() + slot * plan.layout.full_page_bytes(); }
  std::byte* packed_page(int32_t slot) { return packed_slab.data() + slot * plan.layout.packed_page_bytes(); }
  Coder coder(int layer, bool values) const;

  // kv_cache_step.cpp
  KvView view();
  void check_slice(const Slice& slice);
  void take_full_pages(Sequence& s, int n_rows);
  void demote(Sequence& s, std::vector<Demotion>& out);
  void upload_table(Sequence& s, int64_t index);
  SequenceView sequence_view(const Sequence& s, int64_t index) const;
  void commit(Sequence& s);

  Backend& backend;
  CacheSpec spec;
  KvShape shape;
  CachePlan plan;
  std::vector<std::pair<float, float>> clips;
  std::string value_bases;
  DeviceTransforms transforms;
  DeviceFactors factors;
  DeviceSlab full_slab, packed_slab;
  DeviceSlab table_slab;  // int32 [n_sequences][2 forms][pages of the context]
  PagePool full, packed;
  PrefixTree tree;
  Promise promised;  // sum over sequences
  std::vector<Sequence> sequences;
};

}  // namespace kv2
