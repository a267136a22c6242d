// SPDX-License-Identifier: Apache-2.0
// KvCache: the page memory of one method on one model: pools of full and packed pages, every sequence's
// PageTable, the transforms of its basis, the coder's tables, and the prefix tree that shares pages.
// Bookkeeping in integers; bytes move through the Backend. One thread calls it.
//
// Invariants (tests in kv_cache_test.cpp):
//  - K (after RoPE) and V are stored in the transforms' basis, in full and packed pages alike;
//  - between forwards a sequence of n tokens holds in full every page that its next query reads in full, and
//    packed every page it reads packed; nothing else, whatever forks and the prefix tree keep beside it.
//    (PrefillPolicy::Exact: every page in full until the prompt is done, and on to the forward after it.)
//  - a complete page is immutable and may be shared; the page being written belongs to one sequence;
//  - what reserve() promised is there: begin() and commit() never run out of pages;
//  - all memory is taken from the backend at construction, as planned.
// It does not look at the machine's memory: plan first (cache_plan.h) and say what fits before making one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/cache_plan.h"
#include "cache/fitted_method.h"
#include "kv2/cache.h"
#include "ops/backend.h"
#include "quant/transform.h"

namespace kv2 {

enum class SequenceId : int32_t {};

/// One forward's view of the cache: valid until commit().
struct CacheStep {
  KvView kv;
  std::vector<SequenceView> sequences;  // in the order of the slices
  /// Pages not packed yet that a query of this step, or the next query after it, reads packed; complete after
  /// append.
  std::vector<Demotion> demotions;
};

/// A run of new tokens of one sequence, as a batch has it.
struct Slice {
  SequenceId sequence;
  int first_row = 0, n_rows = 0;
  int64_t full_until = 0;  // see SequenceView
};

class KvCache {
 public:
  /// Throws OutOfMemory when the backend refuses a slab.
  KvCache(Backend& backend, const CacheSpec& spec, const KvShape& shape, const CacheCapacity& capacity,
          FittedMethod fitted);
  /// The same for a method whose coder has no tables.
  KvCache(Backend& backend, const CacheSpec& spec, const KvShape& shape, const CacheCapacity& capacity,
          std::vector<LayerTransforms> transforms, std::vector<std::pair<float, float>> clips);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const CacheSpec& spec() const;
  const CachePlan& plan() const;
  const KvShape& shape() const;
  const Visibility& rule() const;

  // Sequences. nullopt / false: no room now (the expected); nothing has changed then.
  [[nodiscard]] std::optional<SequenceId> open();
  /// A sequence of a tenant: pages are shared through the prefix tree only between sequences of one salt.
  /// open() is open(0).
  [[nodiscard]] std::optional<SequenceId> open(uint64_t salt);
  void close(SequenceId sequence);
  /// A new sequence with the same tokens; complete pages are shared, the unfinished page is copied.
  [[nodiscard]] std::optional<SequenceId> fork(SequenceId sequence);
  int64_t n_tokens(SequenceId sequence) const;
  /// Promises the pages that the next n_tokens of this sequence need, in forwards of at most chunk_tokens;
  /// gives up idle pages of the prefix tree for that. An earlier, longer reservation stays. Throws
  /// BadArgument beyond the context, where waiting would not help.
  [[nodiscard]] bool reserve(SequenceId sequence, int64_t n_tokens);

  // Prefix reuse. The tree is keyed by the sequence's salt and whole pages of token ids, compared in full.
  /// Attaches the longest usable cached prefix of `tokens` (whole pages, fewer than all tokens) to an empty
  /// sequence and returns its length. Usable: every page that the next query reads is still there in the form
  /// it reads. Where full forms of the last pages are gone a shorter prefix is used: recomputing those pages
  /// alone could not give the same bytes, as their rows read full pages still further back.
  int64_t attach_prefix(SequenceId sequence, std::span<const int32_t> tokens);
  /// Remembers the pages of a sequence under its tokens for later attach_prefix: complete pages now, those of
  /// tokens still to come as they become complete. So the best time is before a prompt's first forward: then
  /// full forms are kept too, while there is room, of pages that the sequence itself lets go, and a later
  /// prompt can branch off anywhere; later calls find only the full forms of the end. A fork does not inherit
  /// what is still to come. With PrefillPolicy::Exact only the prompt is remembered: later rows were computed
  /// from packed pages.
  void remember_prefix(SequenceId sequence, std::span<const int32_t> tokens);

  // One forward: begin (pages reserved before) -> append, demote, attend per layer -> commit.
  CacheStep begin(std::span<const Slice> slices);
  /// Coders of one layer: group, and clip index or tables (memory of the backend).
  Coder coder_k(int layer) const;
  Coder coder_v(int layer) const;
  /// Counts the step's tokens (the slices of begin) and frees full pages that no later query reads in full.
  void commit(std::span<const Slice> slices);

  /// Device matrices of a layer's transforms; nullptr members where identity.
  struct DeviceTransform {
    const float *k_encode = nullptr, *k_decode = nullptr, *k_mean = nullptr;
    const float *v_encode = nullptr, *v_decode = nullptr, *v_mean = nullptr;
    /// k_decode is k_encodeᵀ bit for bit: x·k_decodeᵀ is x·k_encode, which reads a matrix less and turns
    /// none.
    bool k_rotates = false;
  };
  DeviceTransform transforms(int layer) const;
  /// value_bases_of the transforms.
  const std::string& value_bases() const;

  // For tests, files and `inspect`: canonical bytes of one head page; empty when the page is not held in that
  // form. Of a layer packed in another format than int2: the part of all KV heads, whatever kv_head says.
  std::vector<std::byte> full_bytes(SequenceId sequence, int64_t page, int layer, int kv_head) const;
  std::vector<std::byte> packed_bytes(SequenceId sequence, int64_t page, int layer, int kv_head) const;

  /// Bytes in use by pages of live sequences now (shared pages once; pages that only the prefix tree keeps do
  /// not count).
  size_t used_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kv2
