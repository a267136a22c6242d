// SPDX-License-Identifier: Apache-2.0
// World (tests only): sequences that are fed to a KvCache on a FakeBackend the way a model would, every
// forward checked against the rule of visibility: what each query may read is there, in the right form, with
// the right rows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "cache/fake_backend.h"
#include "cache/kv_cache.h"

namespace kv2 {

/// A sequence as the test knows it. A row's integer stands for what its K and V depend on: all tokens up to
/// it and, under `exact`, where the prompt ends.
struct Talk {
  SequenceId id{};
  uint64_t salt = 0;
  int64_t prompt = 0;           // tokens of it
  std::vector<int32_t> tokens;  // known so far, forwarded or not
  int64_t n = 0;                // forwarded
};

class World {
 public:
  World(const CacheSpec& spec, const CacheCapacity& capacity)
      : spec(spec), capacity(capacity), cache(backend, spec, kShape, capacity, {}, {}) {}

  static constexpr KvShape kShape{.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16};

  bool exact() const { return spec.prefill == PrefillPolicy::Exact && spec.method.quantized(); }
  int64_t full_until(const Talk& t) const { return spec.prefill == PrefillPolicy::Exact ? t.prompt : 0; }

  /// The rule, written out again.
  bool reads_packed(const Talk& t, int64_t pos, int64_t page) const {
    if (!spec.method.quantized() || (exact() && pos < t.prompt)) return false;
    return page * 64 >= spec.sink_tokens && page < pos / 64 - spec.recent_tokens / 64;
  }

  std::vector<int32_t> rows_of(const Talk& t) const {
    std::vector<int32_t> rows;
    uint64_t h = 1469598103934665603u + t.salt * 1000003u;
    for (size_t i = 0; i < t.tokens.size(); i++) {
      const bool after_prompt = exact() && static_cast<int64_t>(i) >= t.prompt;
      h = (h ^ (t.tokens[i] + (after_prompt ? 7919 * t.prompt : 0))) * 1099511628211u;
      h ^= h >> 29;
      rows.push_back(static_cast<int32_t>(h >> 42) + 1);  // 22 bits: exact in a float
    }
    return rows;
  }
  static int32_t in_head(int32_t row, int layer, int head) { return row + 3 * layer + head; }

  struct Part {
    Talk* talk;
    int n_rows;
  };
  void forward(const std::vector<Part>& parts) {
    std::vector<Slice> slices;
    int n_rows = 0;
    for (const Part& p : parts) {
      ASSERT_TRUE(cache.reserve(p.talk->id, p.n_rows));
      ASSERT_TRUE(cache.reserve(p.talk->id, p.n_rows));  // again: nothing more
      slices.push_back({p.talk->id, n_rows, p.n_rows, full_until(*p.talk)});
      n_rows += p.n_rows;
    }
    CacheStep step = cache.begin(slices);
    ASSERT_EQ(step.sequences.size(), parts.size());
    for (int layer = 0; layer < kShape.n_layers; layer++) {
      const std::vector<float> k = inputs(parts, n_rows, layer);
      backend.append(
          {.layer = layer, .k = k.data(), .v = k.data(), .kv = step.kv, .sequences = step.sequences});
      backend.demote({.layer = layer,
                      .k = cache.coder_k(layer),
                      .v = cache.coder_v(layer),
                      .kv = step.kv,
                      .pages = step.demotions});
      for (size_t i = 0; i < parts.size(); i++) {
        ASSERT_EQ(step.sequences[i].first_pos, parts[i].talk->n);
        ASSERT_EQ(step.sequences[i].n_rows, parts[i].n_rows);
        check_reads(step.kv, step.sequences[i], *parts[i].talk, layer);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
    cache.commit(slices);
    for (const Part& p : parts) {
      p.talk->n += p.n_rows;
      check_at_rest(*p.talk);
    }
  }

  /// Between forwards: exactly the pages that the next query reads, in the form it reads.
  void check_at_rest(const Talk& t) {
    ASSERT_EQ(cache.n_tokens(t.id), t.n);
    const bool in_prompt = exact() && t.n <= t.prompt;  // packed by the first forward behind the prompt
    for (int64_t j = 0; j < (capacity.context_tokens + 63) / 64; j++) {
      const bool begun = j * 64 < t.n, packed = begun && !in_prompt && reads_packed(t, t.n, j);
      ASSERT_EQ(!cache.full_bytes(t.id, j, 1, 1).empty(), begun && !packed)
          << "page " << j << " after " << t.n;
      ASSERT_EQ(!cache.packed_bytes(t.id, j, 1, 1).empty(), packed) << "page " << j << " after " << t.n;
    }
  }

  CacheSpec spec;
  CacheCapacity capacity;
  FakeBackend backend;
  KvCache cache;
  int64_t n_pages_checked = 0;

 private:
  std::vector<float> inputs(const std::vector<Part>& parts, int n_rows, int layer) const {
    std::vector<float> k(static_cast<size_t>(n_rows) * kShape.n_kv_heads * kShape.head_dim, -1);
    size_t at = 0;
    for (const Part& p : parts) {
      const std::vector<int32_t> rows = rows_of(*p.talk);
      for (int i = 0; i < p.n_rows; i++)
        for (int head = 0; head < kShape.n_kv_heads; head++, at += kShape.head_dim)
          k[at] = static_cast<float>(in_head(rows.at(p.talk->n + i), layer, head));
    }
    return k;
  }

  void check_reads(const KvView& kv, const SequenceView& view, const Talk& t, int layer) {
    const int64_t end = view.first_pos + view.n_rows;
    std::set<std::pair<int64_t, bool>> read;  // page, packed
    for (int64_t pos = view.first_pos; pos < end; pos++)
      for (int64_t j = 0; j <= pos / 64; j++) read.insert({j, reads_packed(t, pos, j)});
    const std::vector<int32_t> rows = rows_of(t);
    for (const auto& [page, packed] : read) {
      const int32_t slot = packed ? view.packed_pages[page] : view.full_pages[page];
      ASSERT_GE(slot, 0) << "page " << page << (packed ? " packed" : " full") << ", positions "
                         << view.first_pos << " to " << end;
      ASSERT_LT(slot, packed ? cache.plan().n_packed_pages : cache.plan().n_full_pages);
      for (int head = 0; head < kShape.n_kv_heads; head++) {
        const int32_t* got = packed ? FakeBackend::packed_rows(kv, layer, head, slot)
                                    : FakeBackend::full_rows(kv, layer, head, slot);
        for (int64_t pos = page * 64; pos < std::min(end, page * 64 + 64); pos++)
          ASSERT_EQ(got[pos % 64], in_head(rows[pos], layer, head) + (packed ? FakeBackend::kPackedTag : 0))
              << "position " << pos << (packed ? " packed" : " full");
      }
      n_pages_checked++;
    }
  }
};

}  // namespace kv2
