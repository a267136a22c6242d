// SPDX-License-Identifier: Apache-2.0
// CachePlan: the bytes of a cache before anything is allocated, and the page counts behind them. The counts
// are exact bounds (proofs at the functions, checked exhaustively in cache_plan_test.cpp). Scratch of the
// model is not in here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kv2/cache.h"
#include "ops/params.h"
#include "quant/transform.h"

namespace kv2 {

/// What a cache must hold. Tokens are per sequence; a page is never split between sequences except by
/// sharing.
struct CacheCapacity {
  int64_t context_tokens = 0;  // longest sequence
  int n_sequences = 1;
  int chunk_tokens = 512;  // most tokens that one forward adds to one sequence
  /// Extra full pages for prefixes kept by the tree; 0: the tree keeps only what sequences hold, and what
  /// pages the sequences leave unused for the moment.
  int prefix_full_pages = 0;
};

/// Bytes of a cache before anything is allocated. Printed by `kv2 plan`; equals what KvCache allocates.
struct CachePlan {
  PageLayout layout;
  int64_t n_full_pages = 0, n_packed_pages = 0;  // slots in each pool
  size_t full_bytes = 0, packed_bytes = 0, table_bytes = 0, transform_bytes = 0;
  size_t coder_bytes = 0;  // tables of the coder `feedback`
  size_t total_bytes() const {
    return full_bytes + packed_bytes + table_bytes + transform_bytes + coder_bytes;
  }
  /// Everything allocated for one sequence of n tokens ÷ its elements, in bits: full pages, packed pages,
  /// page tables. In decode, that is: a prompt's chunks need more full pages for a moment (and `exact`
  /// prompts all of them), which the pools count.
  double all_in_bits(int64_t n_tokens) const;
  size_t bytes_for(int64_t n_tokens) const;  // the numerator of all_in_bits, in bytes

  Visibility rule;
  CacheCapacity capacity;
};

/// Errors: BadArgument for a capacity that is none, OutOfMemory for one that no machine holds.
CachePlan plan_cache(const CacheSpec& spec, const KvShape& shape, const CacheCapacity& capacity);
/// The same for transforms that are at hand (one per layer, or none) instead of those that the method usually
/// has.
CachePlan plan_cache(const CacheSpec& spec, const KvShape& shape, const CacheCapacity& capacity,
                     std::span<const LayerTransforms> transforms);

/// The longest context, in tokens, whose plan takes at most `bytes`; 0: not even one page per sequence fits.
/// Everything but context_tokens is taken from `capacity`.
int64_t context_that_fits(const CacheSpec& spec, const KvShape& shape, const CacheCapacity& capacity,
                          size_t bytes);

/// Pages that n tokens begin.
constexpr int64_t pages_of(int64_t n_tokens) {
  return (n_tokens + kPageTokens - 1) / kPageTokens;
}

/// Which pages a sequence may need, and how many: a pure function of positions, chunk size and policy.
struct PageNeed {
  Visibility rule;
  PrefillPolicy prefill = PrefillPolicy::Windowed;
  int64_t chunk_tokens = 1;

  /// Full pages held at once, at most, by a sequence that has n tokens on its way to `target` tokens,
  /// whatever the sizes of the forwards (each at most chunk_tokens).
  int64_t full(int64_t n_tokens, int64_t target) const;
  /// Packed pages of a sequence of n tokens: those that the next query reads packed.
  int64_t packed(int64_t n_tokens) const;
};

}  // namespace kv2
