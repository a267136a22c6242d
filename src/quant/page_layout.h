// SPDX-License-Identifier: Apache-2.0
// Bytes of a page. A page is 64 tokens of one sequence, all layers and KV heads; a head page is the part of
// one layer and KV head, K and V together, and the unit that kernels see.
//
//   full head page    bf16  K [64][d]  then  V [64][d]                     (a backend may transpose inside)
//   packed head page  K codes, V codes, K (scale, offset), V (scale, offset)    canonical form:
//   docs/page-format.md
//
// Pages of one format have one size; a backend's private layout of a head page has exactly the canonical
// size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv2/cache.h"

namespace kv2 {

/// What the cache needs to know of a model.
struct KvShape {
  int n_layers = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0;
  int q_per_kv() const { return n_heads / n_kv_heads; }
};

/// Channels that share one scale and offset where the method does not say: head_dim up to 128, above that the
/// largest divisor of head_dim that is a multiple of 4 and at most 128 (192 -> 96, 256 -> 128). 0: there is
/// none.
int default_group(int head_dim);

/// Canonical packed head page of int2: offsets in bytes from its start.
struct Int2Layout {
  int head_dim, group;

  int n_groups() const { return head_dim / group; }
  size_t codes_bytes() const { return static_cast<size_t>(kPageTokens) * head_dim / 4; }  // of K or of V
  size_t params_bytes() const {
    return static_cast<size_t>(kPageTokens) * n_groups() * 4;
  }  // fp16 pairs of K or V
  size_t k_codes() const { return 0; }
  size_t v_codes() const { return codes_bytes(); }
  size_t k_params() const { return 2 * codes_bytes(); }
  size_t v_params() const { return 2 * codes_bytes() + params_bytes(); }
  size_t bytes() const { return 2 * (codes_bytes() + params_bytes()); }
};

/// Sizes and offsets for every layer of a cache. Layers may differ in format later: always go through the
/// offsets.
struct PageLayout {
  KvShape shape;
  int group = 0;  // of the codec; 0 where nothing is packed
  CodecId codec = CodecId::None;

  /// Errors: BadArgument when the shape is empty or the group does not divide head_dim.
  static PageLayout of(const CacheSpec& spec, const KvShape& shape);

  size_t full_head_bytes() const { return static_cast<size_t>(4) * kPageTokens * shape.head_dim; }
  size_t packed_head_bytes() const {
    return codec == CodecId::None ? 0 : Int2Layout{shape.head_dim, group}.bytes();
  }
  size_t heads() const { return static_cast<size_t>(shape.n_layers) * shape.n_kv_heads; }
  size_t full_page_bytes() const { return heads() * full_head_bytes(); }
  size_t packed_page_bytes() const { return heads() * packed_head_bytes(); }
  size_t full_offset(int layer, int kv_head) const { return index(layer, kv_head) * full_head_bytes(); }
  size_t packed_offset(int layer, int kv_head) const { return index(layer, kv_head) * packed_head_bytes(); }
  /// K and V elements of one page: the divisor of "bits per element".
  size_t page_elements() const { return heads() * 2 * kPageTokens * static_cast<size_t>(shape.head_dim); }
  /// Bytes of a packed page ÷ its elements, in bits (16 for bf16).
  double history_bits() const {
    const size_t bytes = codec == CodecId::None ? full_page_bytes() : packed_page_bytes();
    return 8.0 * static_cast<double>(bytes) / static_cast<double>(page_elements());
  }

 private:
  size_t index(int layer, int kv_head) const {
    return static_cast<size_t>(layer) * shape.n_kv_heads + kv_head;
  }
};

}  // namespace kv2
