// SPDX-License-Identifier: Apache-2.0
#include "cache/prefix_tree.h"

#include <algorithm>

#include "base/check.h"

namespace kv2 {

struct PrefixTree::Node {
  Node* parent = nullptr;
  uint64_t salt = 0;                     // of the root
  PageTokens tokens{};                   // unused in a root
  int64_t depth = 0;                     // page index; -1 in a root
  std::array<int32_t, 2> slots{-1, -1};  // by Form
  std::array<uint64_t, 2> stamps{0, 0};
  std::map<PageTokens, std::unique_ptr<Node>> children;

  int32_t& slot(Form form) { return slots[static_cast<size_t>(form)]; }
  uint64_t& age(Form form) { return stamps[static_cast<size_t>(form)]; }
  PageForms forms() const { return {slots[0], slots[1]}; }

  Node* child(const PageTokens& page) const {
    const auto at = children.find(page);
    return at == children.end() ? nullptr : at->second.get();
  }
};

namespace {

PrefixTree::PageTokens page_tokens(std::span<const int32_t> tokens, int64_t page) {
  PrefixTree::PageTokens out;
  std::copy_n(tokens.begin() + page * kPageTokens, kPageTokens, out.begin());
  return out;
}

}  // namespace

PrefixTree::PrefixTree(PagePool& full, PagePool& packed)
    : full_{full, std::vector<Node*>(full.n_slots(), nullptr), {}},
      packed_{packed, std::vector<Node*>(packed.n_slots(), nullptr), {}} {}

PrefixTree::~PrefixTree() {
  clear();
}  // not by recursion: a chain can be thousands of pages long

std::vector<PageForms> PrefixTree::find(uint64_t salt, std::span<const int32_t> tokens) const {
  std::vector<PageForms> pages;
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return pages;
  const Node* node = root->second.get();
  for (int64_t j = 0; (j + 1) * kPageTokens <= static_cast<int64_t>(tokens.size()); j++) {
    node = node->child(page_tokens(tokens, j));
    if (!node) break;
    pages.push_back(node->forms());
  }
  return pages;
}

void PrefixTree::touch(uint64_t salt, std::span<const int32_t> tokens, std::span<const PageForms> used) {
  now_++;
  Node* node = roots_.at(salt).get();
  for (size_t j = 0; j < used.size(); j++) {
    node = node->child(page_tokens(tokens, j));
    KV2_CHECK(node, "page {} is not remembered", j);
    for (Form form : kForms)
      if (used[j].of(form) >= 0) stamp(*node, form);
  }
}

void PrefixTree::remember(uint64_t salt, std::span<const int32_t> tokens, std::span<const PageForms> pages) {
  KV2_CHECK(pages.size() * kPageTokens <= tokens.size(), "{} pages of {} tokens", pages.size(),
            tokens.size());
  if (pages.empty()) return;
  now_++;
  std::unique_ptr<Node>& root = roots_[salt];
  if (!root) {
    root = std::make_unique<Node>();
    root->depth = -1;
    root->salt = salt;
  }
  Node* node = root.get();
  for (size_t j = 0; j < pages.size(); j++) {
    const PageTokens page = page_tokens(tokens, j);
    Node* next = node->child(page);
    if (!next) {
      // A slot that already belongs to another node stays there; a page left without any form ends the chain.
      const auto is_new = [&](Form f) { return pages[j].of(f) >= 0 && !side(f).node_of[pages[j].of(f)]; };
      if (!is_new(Form::Full) && !is_new(Form::Packed)) break;
      auto made = std::make_unique<Node>();
      made->parent = node;
      made->tokens = page;
      made->depth = node->depth + 1;
      next = made.get();
      node->children.emplace(page, std::move(made));
      n_nodes_++;
    }
    for (Form form : kForms) {
      if (next->slot(form) < 0) hold(*next, form, pages[j].of(form));
      if (pages[j].of(form) >= 0 && next->slot(form) >= 0) stamp(*next, form);
    }
    node = next;
  }
  if (root->children.empty()) roots_.erase(salt);
}

void PrefixTree::add_packed(int32_t full_slot, int32_t packed_slot) {
  Node* node = full_.node_of[full_slot];
  if (!node || node->slot(Form::Packed) >= 0) return;
  hold(*node, Form::Packed, packed_slot);
}

int32_t PrefixTree::packed_of(int32_t full_slot) const {
  Node* node = full_.node_of[full_slot];
  return node ? node->slot(Form::Packed) : -1;
}

int64_t PrefixTree::evict(Form form, int64_t n) {
  Side& s = side(form);
  std::vector<int32_t> oldest;
  for (auto at = s.ages.begin(); at != s.ages.end() && static_cast<int64_t>(oldest.size()) < n; ++at)
    if (s.pool.idle(at->slot)) oldest.push_back(at->slot);
  const int64_t free_before = s.pool.n_free();
  for (int32_t slot : oldest) {  // an earlier one may have taken later ones, or more, with it
    if (s.pool.n_free() - free_before >= n) break;
    if (s.node_of[slot]) release(*s.node_of[slot], form);
  }
  return s.pool.n_free() - free_before;
}

void PrefixTree::clear() {
  while (!roots_.empty()) {
    Node& root = *roots_.begin()->second;
    remove(*root.children.begin()->second);  // the last child takes the root with it
  }
}

void PrefixTree::hold(Node& node, Form form, int32_t slot) {
  Side& s = side(form);
  if (slot < 0 || s.node_of[slot]) return;
  s.pool.keep(slot);
  s.node_of[slot] = &node;
  node.slot(form) = slot;
  node.age(form) = now_;
  s.ages.insert({now_, node.depth, slot});
}

void PrefixTree::stamp(Node& node, Form form) {
  const int32_t slot = node.slot(form);
  KV2_CHECK(slot >= 0);
  Side& s = side(form);
  s.ages.erase({node.age(form), node.depth, slot});
  node.age(form) = now_;
  s.ages.insert({now_, node.depth, slot});
}

void PrefixTree::release(Node& node, Form form) {
  Side& s = side(form);
  const int32_t slot = node.slot(form);
  s.ages.erase({node.age(form), node.depth, slot});
  s.node_of[slot] = nullptr;
  node.slot(form) = -1;
  s.pool.unkeep(slot);
  // Without any form nothing behind this page can be used again.
  if (node.slots[0] < 0 && node.slots[1] < 0) remove(node);
}

void PrefixTree::remove(Node& node) {
  std::vector<Node*> behind{&node};  // breadth first, no recursion
  for (size_t i = 0; i < behind.size(); i++)
    for (auto& child : behind[i]->children) behind.push_back(child.second.get());
  for (size_t i = behind.size(); i-- > 0;) {
    Node& n = *behind[i];
    for (Form form : kForms) {
      const int32_t slot = n.slot(form);
      if (slot < 0) continue;
      Side& s = side(form);
      s.ages.erase({n.age(form), n.depth, slot});
      s.node_of[slot] = nullptr;
      s.pool.unkeep(slot);
    }
    Node* parent = n.parent;
    const PageTokens tokens = n.tokens;
    parent->children.erase(tokens);  // children first: this one has none left
    n_nodes_--;
    if (parent->depth < 0 && parent->children.empty()) roots_.erase(uint64_t{parent->salt});
  }
}

int64_t longest_usable(std::span<const PageForms> pages, const Visibility& rule, PrefillPolicy prefill) {
  const auto usable = [&](int64_t n) {
    for (int64_t j = n; j-- > 0;) {  // backwards: what is missing is mostly a full form near the end
      const bool packed =
          prefill == PrefillPolicy::Windowed && rule.packed(static_cast<int>(n), static_cast<int>(j));
      if (pages[j].of(packed ? Form::Packed : Form::Full) < 0) return false;
    }
    return true;
  };
  int64_t n = static_cast<int64_t>(pages.size());
  while (n > 0 && !usable(n)) n--;
  return n;
}

}  // namespace kv2
