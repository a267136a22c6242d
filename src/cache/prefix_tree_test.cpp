// SPDX-License-Identifier: Apache-2.0
// PrefixTree against a flat map from whole prefixes to forms, with random operations on real pools; the rule
// of what is usable against its definition.
#include "cache/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kv2 {
namespace {

using Key = std::vector<int>;  // salt, then one id per page

struct Entry {
  std::array<int32_t, 2> slots{-1, -1};
  std::array<uint64_t, 2> stamps{0, 0};
};

/// Pages of different ids may differ in their last token only.
std::vector<int32_t> tokens_of(const Key& key) {
  std::vector<int32_t> tokens;
  for (size_t i = 1; i < key.size(); i++) {
    tokens.insert(tokens.end(), kPageTokens, key[i] / 2);
    tokens.back() += 1000 * (key[i] % 2);
  }
  return tokens;
}

bool starts_with(const Key& key, const Key& start) {
  return key.size() >= start.size() && std::equal(start.begin(), start.end(), key.begin());
}

class Model {
 public:
  std::vector<PageForms> find(const Key& key) const {
    std::vector<PageForms> out;
    for (size_t n = 2; n <= key.size(); n++) {
      const auto at = entries_.find(Key(key.begin(), key.begin() + n));
      if (at == entries_.end()) break;
      out.push_back({at->second.slots[0], at->second.slots[1]});
    }
    return out;
  }

  void remember(const Key& key, const std::vector<PageForms>& pages) {
    if (!pages.empty()) now_++;
    for (size_t j = 0; j < pages.size(); j++) {
      const Key at(key.begin(), key.begin() + j + 2);
      const bool known = entries_.contains(at);
      Entry e = known ? entries_[at] : Entry{};
      for (size_t f = 0; f < 2; f++) {
        const int32_t slot = pages[j].of(kForms[f]);
        if (slot < 0) continue;
        if (e.slots[f] < 0 && !belongs(f, slot)) e.slots[f] = slot;
        if (e.slots[f] >= 0) e.stamps[f] = now_;
      }
      if (e.slots[0] < 0 && e.slots[1] < 0) return;
      entries_[at] = e;
    }
  }

  void touch(const Key& key, const std::vector<PageForms>& used) {
    now_++;
    for (size_t j = 0; j < used.size(); j++)
      for (size_t f = 0; f < 2; f++)
        if (used[j].of(kForms[f]) >= 0) entries_.at(Key(key.begin(), key.begin() + j + 2)).stamps[f] = now_;
  }

  void add_packed(int32_t full_slot, int32_t packed_slot) {
    for (auto& [key, e] : entries_)
      if (e.slots[0] == full_slot && e.slots[1] < 0 && !belongs(1, packed_slot)) {
        e.slots[1] = packed_slot;
        e.stamps[1] = now_;
        return;
      }
  }

  /// One by one: the oldest idle form, the deepest of one age, until n slots are free.
  void evict(size_t f, int64_t n, const std::vector<int>& owners) {
    while (n > 0) {
      auto best = entries_.end();
      for (auto at = entries_.begin(); at != entries_.end(); ++at) {
        const Entry& e = at->second;
        if (e.slots[f] < 0 || owners[e.slots[f]] > 0) continue;
        if (best == entries_.end() || order(at, f) < order(best, f)) best = at;
      }
      if (best == entries_.end()) return;
      best->second.slots[f] = -1;
      n--;
      if (best->second.slots[1 - f] >= 0) continue;
      const Key key = best->first;
      for (auto at = entries_.begin(); at != entries_.end();) {
        const bool gone = starts_with(at->first, key);
        if (gone && at->second.slots[f] >= 0 && owners[at->second.slots[f]] == 0) n--;
        at = gone ? entries_.erase(at) : std::next(at);
      }
    }
  }

  bool belongs(size_t f, int32_t slot) const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [&](const auto& at) { return at.second.slots[f] == slot; });
  }
  size_t size() const { return entries_.size(); }
  const std::map<Key, Entry>& entries() const { return entries_; }

 private:
  using At = std::map<Key, Entry>::iterator;
  static std::tuple<uint64_t, int64_t, int32_t> order(At at, size_t f) {
    return {at->second.stamps[f], -static_cast<int64_t>(at->first.size()), at->second.slots[f]};
  }
  std::map<Key, Entry> entries_;
  uint64_t now_ = 0;
};

class PrefixTreeRandom : public ::testing::TestWithParam<int> {};

TEST_P(PrefixTreeRandom, AgreesWithAFlatMap) {
  constexpr int kSlots = 40;
  PagePool full(kSlots), packed(kSlots);
  std::array<PagePool*, 2> pools{&full, &packed};
  std::array<std::vector<int>, 2> owners{std::vector<int>(kSlots, 0),
                                         std::vector<int>(kSlots, 0)};  // per slot
  Model model;
  std::mt19937 random(GetParam());
  {
    PrefixTree tree(full, packed);
    const auto random_key = [&] {
      Key key{static_cast<int>(random() % 2)};
      for (int n = 1 + random() % 6; n > 0; n--) key.push_back(random() % 3);
      return key;
    };
    const auto take = [&](size_t f) -> int32_t {
      if (pools[f]->n_free() == 0) return -1;
      const int32_t slot = pools[f]->take();
      owners[f][slot]++;
      return slot;
    };
    for (int i = 0; i < 6000; i++) {
      const Key key = random_key();
      const std::vector<int32_t> tokens = tokens_of(key);
      switch (random() % 8) {
        case 0:
        case 1: {  // new pages, sometimes without one form, sometimes reusing a slot that another page has
          std::vector<PageForms> pages;
          while (pages.size() + 1 < key.size()) {
            PageForms p;
            const auto want = random() % 4;
            if (want != 0) p.full = take(0);
            if (want != 1) p.packed = take(1);
            if (random() % 20 == 0 && owners[0][i % kSlots] > 0) p.full = i % kSlots;
            if (p.full < 0 && p.packed < 0) break;
            pages.push_back(p);
          }
          tree.remember(key[0], tokens, pages);
          model.remember(key, pages);
          break;
        }
        case 2:
          if (const auto found = tree.find(key[0], tokens); !found.empty()) {
            std::vector<PageForms> used = found;
            for (PageForms& p : used) (random() % 2 ? p.full : p.packed) = -1;
            tree.touch(key[0], tokens, used);
            model.touch(key, used);
          }
          break;
        case 3:
        case 4:  // owners let go
          for (size_t f = 0; f < 2; f++) {
            for (int32_t slot = 0; slot < kSlots; slot++) {
              if (owners[f][slot] == 0 || random() % 3 != 0) continue;
              pools[f]->drop(slot);
              owners[f][slot]--;
            }
          }
          break;
        case 5: {
          const auto f = random() % 2;
          const int64_t n = random() % 5;
          tree.evict(kForms[f], n);
          model.evict(f, n, owners[f]);
          break;
        }
        case 6:
          for (const auto& [at, e] : model.entries()) {
            if (e.slots[0] < 0 || e.slots[1] >= 0 || random() % 2) continue;
            const int32_t full_slot = e.slots[0], slot = take(1);
            if (slot < 0) break;
            tree.add_packed(full_slot, slot);
            model.add_packed(full_slot, slot);
            ASSERT_EQ(tree.packed_of(full_slot), slot);
            break;
          }
          break;
        case 7:  // a reader takes hold of what it found
          for (const PageForms& p : tree.find(key[0], tokens))
            for (size_t f = 0; f < 2; f++)
              if (p.of(kForms[f]) >= 0) {
                pools[f]->share(p.of(kForms[f]));
                owners[f][p.of(kForms[f])]++;
              }
          break;
      }
      ASSERT_EQ(tree.n_nodes(), static_cast<int64_t>(model.size())) << "after operation " << i;
      const Key probe = random_key();
      std::vector<int32_t> probe_tokens = tokens_of(probe);
      probe_tokens.resize(probe_tokens.size() + random() % kPageTokens,
                          1);  // an unfinished page changes nothing
      const auto got = tree.find(probe[0], probe_tokens), want = model.find(probe);
      ASSERT_EQ(got.size(), want.size());
      for (size_t j = 0; j < got.size(); j++) {
        ASSERT_EQ(got[j].full, want[j].full);
        ASSERT_EQ(got[j].packed, want[j].packed);
      }
      for (size_t f = 0; f < 2; f++)
        for (int32_t slot = 0; slot < kSlots; slot++) {
          ASSERT_EQ(pools[f]->kept(slot), model.belongs(f, slot));
          ASSERT_EQ(pools[f]->refs(slot), owners[f][slot] + model.belongs(f, slot));
        }
    }
  }
  for (size_t f = 0; f < 2; f++)  // the tree is gone: only owners are left
    for (int32_t slot = 0; slot < kSlots; slot++) ASSERT_EQ(pools[f]->refs(slot), owners[f][slot]);
}

INSTANTIATE_TEST_SUITE_P(Seeds, PrefixTreeRandom, ::testing::Range(1, 5));

TEST(PrefixTree, LongChainsNeedNoDeepStack) {
  constexpr int kPages = 30000;
  PagePool full(0), packed(kPages);
  PrefixTree tree(full, packed);
  std::vector<PageForms> pages(kPages);
  for (PageForms& p : pages) p.packed = packed.take();
  const std::vector<int32_t> tokens(static_cast<size_t>(kPages) * kPageTokens, 7);
  tree.remember(0, tokens, pages);
  for (const PageForms& p : pages) packed.drop(p.packed);
  EXPECT_EQ(tree.evict(Form::Packed, 10), 10);
  EXPECT_EQ(tree.find(0, tokens).size(), kPages - 10u);  // the end went first
  tree.clear();
  EXPECT_EQ(packed.n_free(), kPages);
}

TEST(LongestUsable, IsTheLongestByDefinition) {
  std::mt19937 random(3);
  for (int i = 0; i < 3000; i++) {
    const Visibility rule{static_cast<int>(random() % 3), static_cast<int>(random() % 4), random() % 5 != 0};
    const PrefillPolicy prefill = random() % 4 ? PrefillPolicy::Windowed : PrefillPolicy::Exact;
    std::vector<PageForms> pages(random() % 12);
    for (PageForms& p : pages) {
      if (random() % 5 != 0) p.full = 1;
      if (random() % 8 != 0) p.packed = 1;
    }
    int64_t longest = 0;
    for (int64_t n = 0; n <= static_cast<int64_t>(pages.size()); n++) {
      bool all = true;
      for (int64_t j = 0; j < n; j++) {
        const bool is_history = j >= rule.sink_pages && j < n - rule.recent_pages;
        const bool reads_packed = rule.quantized && is_history && prefill == PrefillPolicy::Windowed;
        all = all && (reads_packed ? pages[j].packed : pages[j].full) >= 0;
      }
      if (all) longest = n;
    }
    ASSERT_EQ(longest_usable(pages, rule, prefill), longest);
  }
}

}  // namespace
}  // namespace kv2
