// SPDX-License-Identifier: Apache-2.0
// Sequences with random keys and values in pages at random slots: the world in which append, demote and
// attend are tried. Everything that an op must not read is poison: unused slots, other layers, and table
// entries of pages that the queries of a call do not read (-1). Rows past a sequence's end are huge, or NaN
// where a case asks for it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/float16.h"
#include "ops/cases/inputs.h"

namespace kv2::cases {

struct WorldSpec {
  KvShape shape;
  int layer = 0, group = 0;  // of int2; group 0: no codec, every page is full, unless k and v say otherwise
  Visibility rule;
  std::vector<int64_t> n_tokens;  // of each sequence
  float key_mean = 0.3f, clip_k = 0.96f, clip_v = 0.92f;
  bool stale_nan = false;
  uint64_t seed = 1;
  SideFormat k, v;  // another format than int2; codec None: int2

  Coder coder_k() const { return coder(clip_k, layout().packs() ? layout().layer(layer).k.group : 0); }
  Coder coder_v() const { return coder(clip_v, layout().packs() ? layout().layer(layer).v.group : 0); }
  PageLayout layout() const {
    if (k.codec != CodecId::None) return PageLayout::of({.method = {.name = "", .k = k, .v = v}}, shape);
    return group ? PageLayout::of_int2(shape, group) : PageLayout::of({}, shape);
  }

 private:
  Coder coder(float clip, int group) const {
    return {CoderKind::Round, group, clip_index(clip, shape.head_dim)};
  }
};

/// Formats other than int2 for tests of ops, one or two of every codec; those that fit head_dim.
struct FormatCase {
  std::string name;
  SideFormat k, v;
};
std::vector<FormatCase> other_formats(int head_dim);

/// Consecutive rows of one sequence in a call.
struct Segment {
  int sequence;
  int64_t first_pos;
  int n_rows;
  int64_t full_until = 0;
};

/// Ways to feed sequences of n_tokens: in chunks, one sequence after the other; or in batches of one row here
/// and many there, several sequences at once.
std::vector<std::vector<Segment>> chunk_steps(const std::vector<int64_t>& n_tokens, int chunk);
std::vector<std::vector<Segment>> ragged_steps(const std::vector<int64_t>& n_tokens, uint64_t seed);

/// SequenceViews with the tables they point to.
struct Views {
  std::vector<std::vector<int32_t>> tables;
  std::vector<SequenceView> views;
};

class PageWorld {
 public:
  explicit PageWorld(WorldSpec spec);

  const WorldSpec& spec() const { return spec_; }
  int n_pages(int sequence) const { return static_cast<int>(full_slots_[sequence].size()); }
  int full_slot(int sequence, int page) const { return full_slots_[sequence][page]; }
  int packed_slot(int sequence, int page) const { return packed_slots_[sequence][page]; }
  int n_slots() const { return n_slots_; }  // of either pool

  /// K or V rows of one sequence before rounding, [n_tokens, n_kv_heads, head_dim].
  const std::vector<float>& keys(int sequence) const { return keys_[sequence]; }
  const std::vector<float>& values(int sequence) const { return values_[sequence]; }

  /// Rows of the segments as a batch has them, [n_rows, n_kv_heads, head_dim].
  std::vector<float> batch_keys(std::span<const Segment> segments) const { return gather(keys_, segments); }
  std::vector<float> batch_values(std::span<const Segment> segments) const {
    return gather(values_, segments);
  }

  /// Canonical bytes of one head page; of packed pages in another format than int2 the part of all KV heads,
  /// kv_head 0. Packed: complete pages only; coded on first use, by one thread at a time.
  std::vector<std::byte> canonical_full(int sequence, int page, int kv_head) const;
  const std::vector<std::byte>& canonical_packed(int sequence, int page, int kv_head) const;

  /// Tables that hold exactly the pages which the queries of these segments read, by the rule written out
  /// again here.
  Views views(std::span<const Segment> segments) const;
  /// Tables that hold the full page of every row of these segments.
  Views append_views(std::span<const Segment> segments) const;

 private:
  std::vector<float> gather(const std::vector<std::vector<float>>& from,
                            std::span<const Segment> segments) const;
  std::vector<std::byte> encoded_part(const LayerLayout& part, int sequence, int page) const;

  WorldSpec spec_;
  int n_slots_ = 0;
  std::vector<std::vector<float>> keys_, values_;
  std::vector<std::vector<int32_t>> full_slots_, packed_slots_;
  mutable std::map<std::array<int, 3>, std::vector<std::byte>> packed_bytes_;  // by sequence, page, KV head
};

/// A world's page pools on a backend. Pools hold NaN alone until fill_* imports the canonical pages, or
/// blank_full pages whose every value is a NaN.
class DevicePages {
 public:
  DevicePages(Backend& backend, std::shared_ptr<const PageWorld> world);
  void fill_full() const;
  void blank_full() const;
  void fill_packed() const;

  KvView view() const;
  /// Canonical bytes of every head page of the world's layer in sequence order, then all bytes of all other
  /// layers and unused slots as they are, so that a write to the wrong place is seen too.
  std::vector<std::byte> export_all_full() const;
  std::vector<std::byte> export_all_packed() const;

 private:
  std::byte* full_head(int sequence, int page, int kv_head) const;
  std::byte* packed_page(int sequence, int page) const;
  int n_parts() const;  // of a packed page's layer: head pages, or one for all heads
  void append_untouched(const DeviceArray<std::byte>& pool, size_t page_bytes, size_t own_offset,
                        size_t own_bytes, const std::vector<std::vector<int32_t>>& own_slots,
                        std::vector<std::byte>& out) const;

  Backend* backend_;
  std::shared_ptr<const PageWorld> world_;
  PageLayout layout_;
  DeviceArray<std::byte> full_, packed_;
};

}  // namespace kv2::cases
