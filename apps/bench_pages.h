// SPDX-License-Identifier: Apache-2.0
// A batch of long sequences for attention alone. Few random pages are made (and coded by the specification);
// every page of every sequence is a copy of one of them at a slot of its own, so that as much memory is read
// as in a model, while what attention must give can be computed from the few.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "cache/cache_plan.h"
#include "ops/cases/attend_case.h"

namespace kv2::app {

/// The last n_rows of n_tokens ask: 1 is a step of decode, more are a chunk of a prompt.
struct BatchSize {
  int n_sequences = 1;
  int64_t n_tokens = 0;
  int n_rows = 1;
};

class BenchPages {
 public:
  /// All layers of `shape`, every one with pages of its own. Errors: those of a method and of memory.
  BenchPages(Backend& backend, const KvShape& shape, const CacheSpec& spec, const BatchSize& size);

  const PageLayout& layout() const { return layout_; }
  KvView view() const { return {layout_, full_->data(), packed_->data(), rule_}; }
  const std::vector<SequenceView>& sequences() const { return views_; }
  /// Pages that one layer's attention must read, in both forms.
  size_t n_full() const { return n_full_; }
  size_t n_packed() const { return n_packed_; }

  /// What the last row of a sequence must give: `query` [n_heads, head_dim], by the reference backend.
  std::vector<float> expected(int sequence, const std::vector<float>& query, float softmax_scale) const;

 private:
  static constexpr int kMade = 64;  // pages

  int n_pages() const { return static_cast<int>(pages_of(size_.n_tokens)); }
  int n_made() const { return std::min(n_pages(), kMade); }
  /// Which made page a page is a copy of. The last one is alone: it may be incomplete.
  int source(int sequence, int page) const {
    return page == n_pages() - 1 ? n_made() - 1 : (page + 7 * sequence) % (n_made() - 1);
  }
  /// Whether some row of a chunk reads a page in that form.
  bool reads_full(int page) const {
    const int first = static_cast<int>((size_.n_tokens - size_.n_rows) / kPageTokens);
    return !rule_.packed(std::max(first, page), page);
  }
  bool reads_packed(int page) const { return rule_.packed(n_pages() - 1, page); }
  void require_room() const;
  void choose_slots();
  void fill_full();
  void fill_packed();

  Backend& backend_;
  BatchSize size_;
  PageLayout layout_;
  Visibility rule_;
  std::shared_ptr<const cases::PageWorld> world_;   // the made ones, one layer
  std::vector<int32_t> full_slots_, packed_slots_;  // [n_sequences, n_pages], -1: no row reads that form
  size_t n_full_ = 0, n_packed_ = 0;
  std::optional<cases::DeviceArray<std::byte>> full_, packed_;
  std::optional<cases::DeviceArray<int32_t>> full_table_, packed_table_;
  std::vector<SequenceView> views_;
};

}  // namespace kv2::app
