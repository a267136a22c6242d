// SPDX-License-Identifier: Apache-2.0
// Merger: joins neighbouring symbols, always the cheapest pair (the leftmost of equals), until no pair can be
// joined. n symbols take O(n log n) steps whatever they are; its memory is reused from one call to the next.
#pragma once

#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

namespace kv2 {

struct Symbol {
  int32_t id;              // -1: no token
  int32_t prev, next;      // in the list of living symbols; -1: none
  uint32_t begin, length;  // bytes of the text; length 0: joined into another
};

struct Join {
  int32_t id;   // the token of both together
  double cost;  // rank of the merge, or the negative score
};

class Merger {
 public:
  void clear() { symbols_.clear(); }
  void add(int32_t id, uint32_t begin, uint32_t length) {
    const int32_t i = static_cast<int32_t>(symbols_.size());
    if (i > 0) symbols_.back().next = i;
    symbols_.push_back({id, i - 1, -1, begin, length});
  }
  const std::vector<Symbol>& symbols() const { return symbols_; }  // those of length 0 are gone

  /// join(left, right) -> std::optional<Join>. A candidate that lost a side is dropped unless the pair now
  /// standing there gives the same token, as in the reference implementations.
  template <class JoinOf>
  void merge(const JoinOf& join) {
    for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols_.size()); i++) offer(i, join);
    while (!candidates_.empty()) {
      const Candidate best = candidates_.top();
      candidates_.pop();
      Symbol& left = symbols_[static_cast<size_t>(best.left)];
      if (left.length == 0 || left.next < 0) continue;
      Symbol& right = symbols_[static_cast<size_t>(left.next)];
      const std::optional<Join> now = join(left, right);
      if (!now || now->id != best.id) continue;
      left.id = now->id;
      left.length += right.length;
      right.length = 0;
      left.next = right.next;
      if (left.next >= 0) symbols_[static_cast<size_t>(left.next)].prev = best.left;
      if (left.prev >= 0) offer(left.prev, join);
      offer(best.left, join);
    }
  }

 private:
  struct Candidate {
    double cost;
    int32_t left, id;
    bool operator<(const Candidate& other) const {  // the top of the queue is the greatest
      return cost > other.cost || (cost == other.cost && left > other.left);
    }
  };
  template <class JoinOf>
  void offer(int32_t i, const JoinOf& join) {
    const Symbol& left = symbols_[static_cast<size_t>(i)];
    if (left.next < 0) return;
    if (const std::optional<Join> j = join(left, symbols_[static_cast<size_t>(left.next)]))
      candidates_.push({j->cost, i, j->id});
  }

  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate> candidates_;
};

}  // namespace kv2
