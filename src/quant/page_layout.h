// SPDX-License-Identifier: Apache-2.0
// Bytes of a page. A page is 64 tokens of one sequence, all layers and KV heads; a head page is the part of
// one layer and KV head, K and V together, and the unit that kernels see.
//
//   full head page    bf16  K [64][d]  then  V [64][d]                     (a backend may transpose inside)
//   packed head page  K codes, V codes, K (scale, offset), V (scale, offset)    canonical form of int2:
//   docs/page-format.md
//
// A backend's private layout of a head page has exactly the canonical size. In any other format than int2 a
// layer's packed part is K's side and V's side, all KV heads each, in canonical form (page_codec.h) or a
// private one of the same size (export_sides in ops/device_extras.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
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

/// What a codec knows of the side at hand besides its bytes.
struct Side {
  const SideFormat& format;  // resolved
  const KvShape& shape;
  std::span<const float> tables = {};  // of a codec with calibrated constants
  int64_t first_position = 0;          // of the page
};

/// One layer's part of a packed page.
struct LayerLayout {
  SideFormat k, v;       // resolved: groups are the ones in use
  bool rounded = false;  // by an override: nearest codes without a clip, whatever the method's coder
  size_t offset = 0;     // of the part, from the start of a packed page; a multiple of 64
  size_t k_bytes = 0, v_bytes = 0;        // of all KV heads
  std::vector<float> k_tables, v_tables;  // constants of their codecs, where those have any; host memory

  /// Int2Layout head pages, one per KV head, which fast kernels read. Otherwise the part is K's side, then
  /// V's, as PageCodec stores them.
  bool int2_heads() const {
    const bool int2 = k.codec == CodecId::Affine && k.bits == 2 && k.offset == OffsetKind::Stored;
    return int2 && v == k;
  }
  size_t k_offset() const { return offset; }
  size_t v_offset() const { return offset + k_bytes; }
  size_t bytes() const { return k_bytes + v_bytes; }
};

/// Sizes and offsets for every layer of a cache. Layers may differ in format: always go through the offsets.
/// Cheap to copy.
struct PageLayout {
  KvShape shape;

  /// Errors: BadArgument when the shape is empty or a format does not fit head_dim, saying what would.
  static PageLayout of(const CacheSpec& spec, const KvShape& shape);
  /// int2 head pages in every layer.
  static PageLayout of_int2(const KvShape& shape, int group);

  /// The same with the constants of codecs that have any: of K and V, per layer; empty where there are none.
  PageLayout with_tables(std::span<const std::vector<float>> k, std::span<const std::vector<float>> v) const;

  bool packs() const { return layers_ != nullptr; }
  const LayerLayout& layer(int layer) const { return (*layers_)[static_cast<size_t>(layer)]; }
  /// "K affine 2 bits, groups of 64, V …", one part for each format and the layers that have it.
  std::string describe() const;

  size_t full_head_bytes() const { return static_cast<size_t>(4) * kPageTokens * shape.head_dim; }
  size_t heads() const { return static_cast<size_t>(shape.n_layers) * shape.n_kv_heads; }
  size_t full_page_bytes() const { return heads() * full_head_bytes(); }
  size_t packed_page_bytes() const { return packed_page_bytes_; }
  size_t full_offset(int layer, int kv_head) const {
    return (static_cast<size_t>(layer) * shape.n_kv_heads + kv_head) * full_head_bytes();
  }
  Side k_side(int layer, int64_t page) const {
    return {this->layer(layer).k, shape, this->layer(layer).k_tables, page * kPageTokens};
  }
  Side v_side(int layer, int64_t page) const {
    return {this->layer(layer).v, shape, this->layer(layer).v_tables, page * kPageTokens};
  }
  // Of layers with int2_heads():
  Int2Layout int2(int layer) const { return {shape.head_dim, this->layer(layer).k.group}; }
  size_t packed_head_bytes(int layer) const { return int2(layer).bytes(); }
  size_t packed_offset(int layer, int kv_head) const {
    return this->layer(layer).offset + static_cast<size_t>(kv_head) * packed_head_bytes(layer);
  }

  /// K and V elements of one page: the divisor of "bits per element".
  size_t page_elements() const { return heads() * 2 * kPageTokens * static_cast<size_t>(shape.head_dim); }
  /// Bytes of a packed page ÷ its elements, in bits (16 for bf16).
  double history_bits() const {
    const size_t bytes = packs() ? packed_page_bytes() : full_page_bytes();
    return 8.0 * static_cast<double>(bytes) / static_cast<double>(page_elements());
  }

 private:
  std::shared_ptr<const std::vector<LayerLayout>> layers_;  // null: nothing is packed
  size_t packed_page_bytes_ = 0;
};

}  // namespace kv2
