// SPDX-License-Identifier: Apache-2.0
// PrefixTree: complete pages that outlive their sequence, found again by the token ids in front of them. A
// node is one page: its 64 tokens (compared in full, never a hash alone), and the slots of its full and
// packed forms. Invariants: a node has at least one form; a slot belongs to at most one node; a child's page
// follows its parent's. A page's full form is given up long before its packed one (it costs 7 times as much);
// a prefix is usable only where the pages that its next query reads in full are still there. Making them
// again from packed pages would not give the same bytes (their own rows would need full pages still further
// back), so a shorter prefix is used instead.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "cache/page_pool.h"
#include "cache/page_table.h"
#include "ops/params.h"

namespace kv2 {

class PrefixTree {
 public:
  using PageTokens = std::array<int32_t, kPageTokens>;
  struct Node;

  PrefixTree(PagePool& full, PagePool& packed);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  /// The longest chain of remembered pages under `tokens` (whole pages of it). `salt` separates tenants.
  std::vector<PageForms> find(uint64_t salt, std::span<const int32_t> tokens) const;
  /// Marks forms of the first pages of `tokens` as used now. used[j]: which of page j's forms (-1: not that
  /// one).
  void touch(uint64_t salt, std::span<const int32_t> tokens, std::span<const PageForms> used);
  /// Keeps these forms of the first pages of `tokens`; where a page is known already, the forms that it
  /// lacks.
  void remember(uint64_t salt, std::span<const int32_t> tokens, std::span<const PageForms> pages);

  /// The page whose full form lies in this slot, if it is remembered, has a packed form now.
  void add_packed(int32_t full_slot, int32_t packed_slot);
  /// Slot of the packed form of the remembered page whose full form lies in this slot, or -1.
  int32_t packed_of(int32_t full_slot) const;

  /// Gives n idle slots of this form back to the pool, or all that there are, least recently used first; more
  /// where pages behind them became useless. Returns how many.
  int64_t evict(Form form, int64_t n);
  void clear();

  int64_t n_nodes() const { return n_nodes_; }

 private:
  struct Age {  // order of eviction: oldest first, of one age the deepest first
    uint64_t stamp;
    int64_t depth;
    int32_t slot;
    auto operator<=>(const Age& o) const {
      if (stamp != o.stamp) return stamp <=> o.stamp;
      if (depth != o.depth) return o.depth <=> depth;
      return slot <=> o.slot;
    }
  };
  struct Side {  // everything that exists once per form
    PagePool& pool;
    std::vector<Node*> node_of;  // [n_slots]
    std::set<Age> ages;
  };
  Side& side(Form form) { return form == Form::Full ? full_ : packed_; }

  void hold(Node& node, Form form, int32_t slot);
  void stamp(Node& node, Form form);
  void release(Node& node, Form form);
  void remove(Node& node);  // with all pages behind it

  Side full_, packed_;
  std::map<uint64_t, std::unique_ptr<Node>> roots_;  // by salt; a root is no page
  uint64_t now_ = 0;
  int64_t n_nodes_ = 0;
};

/// The most pages P <= pages.size() such that the query behind them finds every page in the form it reads:
/// all full for PrefillPolicy::Exact, else by the rule.
int64_t longest_usable(std::span<const PageForms> pages, const Visibility& rule, PrefillPolicy prefill);

}  // namespace kv2
