// SPDX-License-Identifier: Apache-2.0
// SubwordModel: one pre-token (or one stretch of SentencePiece text) to ids. Immutable; it borrows the
// recipe. It knows nothing of added tokens, pre-tokenizers or normal forms.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/merger.h"
#include "text/recipe.h"

namespace kv2 {

class SubwordModel {
 public:
  explicit SubwordModel(const TokenizerRecipe& recipe);

  /// Appends the ids of `text`. Byte-level: any bytes. SentencePiece: "▁" where spaces were, ill-formed bytes
  /// as bytes.
  void encode(std::string_view text, Merger& merger, std::vector<int32_t>& out) const;
  /// Bytes that have no token of their own. Byte-level models without unk drop them, as their references do.
  int n_missing_bytes() const;

 private:
  struct RankedMerge {
    int32_t rank, result;
  };
  static uint64_t pair_key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  int32_t find(std::string_view token) const;
  std::optional<Join> join_by_rank(const Symbol& left, const Symbol& right) const;
  std::optional<Join> join_by_score(std::string_view text, const Symbol& left, const Symbol& right) const;
  void add_bytes(std::string_view text, Merger& merger) const;
  void add_characters(std::string_view text, Merger& merger) const;
  void write(std::string_view text, const Merger& merger, std::vector<int32_t>& out) const;

  const TokenizerRecipe& recipe_;
  std::unordered_map<std::string_view, int32_t> ids_;  // tokens that text can become
  std::unordered_map<uint64_t, RankedMerge> merges_;
  std::array<int32_t, 256> byte_ids_;  // -1: none
  size_t longest_ = 0;                 // bytes of the longest token in ids_
};

}  // namespace kv2
