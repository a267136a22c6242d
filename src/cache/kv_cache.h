// KvCache: the page memory of one method on one model: pools of full and packed pages, every sequence's PageTable,
// the transforms of its basis, and the prefix tree that shares pages. Bookkeeping in integers; bytes move through the
// Backend. One thread calls it.
//
// Invariants (tests in kv_cache_test.cpp):
//  - K (after RoPE) and V are stored in the transforms' basis, in full and packed pages alike;
//  - a sequence of n tokens holds a full page for every page that its next query may read in full, and a packed page
//    for every page it may read packed; nothing else unless the prefix tree or a fork keeps it;
//  - a complete page is immutable and may be shared; the page being written belongs to one sequence;
//  - all memory is taken from the backend at construction, as planned.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv2/cache.h"
#include "ops/backend.h"
#include "quant/transform.h"

namespace kv2 {

enum class SequenceId : int32_t {};

/// What a cache must hold. Tokens are per sequence; a page is never split between sequences except by sharing.
struct CacheCapacity {
  int64_t context_tokens = 0;  // longest sequence
  int n_sequences = 1;
  int chunk_tokens = 512;      // most tokens that one forward adds to one sequence
  /// Extra full pages for prefixes kept by the tree; 0: the tree keeps only what sequences hold.
  int prefix_full_pages = 0;
};

/// Bytes of a cache before anything is allocated. Printed by `kv2 plan`; equals what KvCache allocates.
struct CachePlan {
  PageLayout layout;
  int64_t n_full_pages = 0, n_packed_pages = 0;  // slots in each pool
  size_t full_bytes = 0, packed_bytes = 0, table_bytes = 0, transform_bytes = 0;
  size_t total_bytes() const { return full_bytes + packed_bytes + table_bytes + transform_bytes; }
  /// Everything allocated for one sequence of n tokens ÷ its elements, in bits: full pages, packed pages, page tables.
  double all_in_bits(int64_t n_tokens) const;
  size_t bytes_for(int64_t n_tokens) const;  // the numerator of all_in_bits, in bytes

  Visibility rule;
  CacheCapacity capacity;
};
CachePlan plan_cache(const CacheSpec& spec, const KvShape& shape, const CacheCapacity& capacity);

/// One forward's view of the cache: valid until commit().
struct CacheStep {
  KvView kv;
  std::vector<SequenceView> sequences;  // in the order of the slices
  std::vector<Demotion> demotions;      // pages that some query of this step reads packed and that are not packed yet
  Coder coder_k, coder_v;               // clip filled per layer by coder_of()
};

/// A run of new tokens of one sequence, as a batch has it.
struct Slice {
  SequenceId sequence;
  int first_row = 0, n_rows = 0;
  int64_t full_until = 0;  // see SequenceView
};

class KvCache {
 public:
  /// transforms: one per layer, or empty for identity everywhere. clips: ratio per layer {k, v}, used where the
  /// method has none of its own; empty: no clip. Throws OutOfMemory with what would fit.
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
  void close(SequenceId sequence);
  /// A new sequence with the same tokens; complete pages are shared, the unfinished page is copied.
  [[nodiscard]] std::optional<SequenceId> fork(SequenceId sequence);
  int64_t n_tokens(SequenceId sequence) const;
  /// Takes what pages the next n_tokens of this sequence need.
  [[nodiscard]] bool reserve(SequenceId sequence, int64_t n_tokens);

  // Prefix reuse. The tree is keyed by whole pages of token ids; `salt` separates tenants.
  /// Attaches the longest usable cached prefix of `tokens` (whole pages, fewer than all tokens) to an empty sequence
  /// and returns its length. Usable: every page that the next query reads is still there in the form it reads.
  int64_t attach_prefix(SequenceId sequence, std::span<const int32_t> tokens);
  /// Remembers the complete pages of a sequence under its tokens, for later attach_prefix.
  void remember_prefix(SequenceId sequence, std::span<const int32_t> tokens);

  // One forward: begin (pages reserved before) -> append, demote, attend per layer -> commit.
  CacheStep begin(std::span<const Slice> slices);
  /// Coders of one layer: group and clip index.
  Coder coder_k(int layer) const;
  Coder coder_v(int layer) const;
  /// Counts the step's tokens and frees full pages that no later query reads in full.
  void commit(std::span<const Slice> slices);

  /// Device matrices of a layer's transforms; nullptr members where identity.
  struct DeviceTransform {
    const float *k_encode = nullptr, *k_decode = nullptr, *k_mean = nullptr;
    const float *v_encode = nullptr, *v_decode = nullptr, *v_mean = nullptr;
  };
  DeviceTransform transforms(int layer) const;

  // For tests, files and `inspect`: canonical bytes of one head page; empty when the page is not held in that form.
  std::vector<std::byte> full_bytes(SequenceId sequence, int64_t page, int layer, int kv_head) const;
  std::vector<std::byte> packed_bytes(SequenceId sequence, int64_t page, int layer, int kv_head) const;

  /// Bytes in use by pages of live sequences now (shared pages once).
  size_t used_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kv2
