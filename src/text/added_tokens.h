// SPDX-License-Identifier: Apache-2.0
// AddedTokens: finds tokens that are matched as text before any model sees it: leftmost, then longest, as
// Hugging Face's tokenizers does. Immutable.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/recipe.h"

namespace kv2 {

/// A stretch of the text: one added token, or text between them (id -1, never empty).
struct Stretch {
  int32_t id;
  std::string_view text;
};

class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  /// Calls see(Stretch) for the whole of `text`, in order.
  template <class See>
  void split(std::string_view text, Tokenizer::Special special, const See& see) const {
    size_t done = 0;
    for (size_t at = 0; at < text.size();) {
      const Match m = next(text, at, special);
      if (!m.token) break;
      if (m.begin > done) see(Stretch{-1, text.substr(done, m.begin - done)});
      see(Stretch{m.token->id, text.substr(m.begin, m.end - m.begin)});
      done = at = m.end;
    }
    if (done < text.size()) see(Stretch{-1, text.substr(done)});
  }

 private:
  struct Match {
    const AddedToken* token = nullptr;
    size_t begin = 0, end = 0;
  };
  /// The first match in text[from, …) that counts.
  Match next(std::string_view text, size_t from, Tokenizer::Special special) const;
  const AddedToken* longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> starts_{};                // by first byte
  std::unordered_map<uint64_t, uint32_t> edges_;  // node << 8 | byte -> node; node 0 is the root
  std::vector<int32_t> token_of_;                 // by node: index into tokens_, -1
};

}  // namespace kv2
