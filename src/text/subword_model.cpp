// SPDX-License-Identifier: Apache-2.0
#include "text/subword_model.h"

#include <algorithm>

#include "base/check.h"
#include "text/byte_alphabet.h"
#include "text/utf8.h"

namespace kv2 {

SubwordModel::SubwordModel(const TokenizerRecipe& recipe) : recipe_(recipe) {
  byte_ids_.fill(-1);
  const bool byte_level = recipe.kind == TokenizerKind::ByteLevelBpe;
  ids_.reserve(recipe.tokens.size());
  for (size_t i = 0; i < recipe.tokens.size(); i++) {
    const std::string& token = recipe.tokens[i];
    const TokenType type = recipe.types[i];
    if (type == TokenType::Byte)
      byte_ids_[static_cast<size_t>(byte_token_value(token))] = static_cast<int32_t>(i);
    // as in SentencePiece, text never becomes a control, unknown, byte or unused token by way of merging
    if (token.empty() || (type != TokenType::Normal && type != TokenType::UserDefined)) continue;
    ids_.emplace(token, static_cast<int32_t>(i));
    longest_ = std::max(longest_, token.size());
  }
  if (byte_level)
    for (size_t b = 0; b < 256; b++) byte_ids_[b] = find(byte_alphabet()[b]);
  merges_.reserve(recipe.merges.size());
  for (size_t rank = 0; rank < recipe.merges.size(); rank++) {
    const Merge& m = recipe.merges[rank];
    const auto [it, fresh] =
        merges_.try_emplace(pair_key(m.left, m.right), RankedMerge{static_cast<int32_t>(rank), m.result});
    if (!fresh && recipe.last_merge_wins) it->second.rank = static_cast<int32_t>(rank);
  }
}

int32_t SubwordModel::find(std::string_view token) const {
  if (token.size() > longest_) return -1;
  const auto it = ids_.find(token);
  return it == ids_.end() ? -1 : it->second;
}

int SubwordModel::n_missing_bytes() const {
  return static_cast<int>(std::count(byte_ids_.begin(), byte_ids_.end(), -1));
}

std::optional<Join> SubwordModel::join_by_rank(const Symbol& left, const Symbol& right) const {
  if (left.id < 0 || right.id < 0) return std::nullopt;
  const auto it = merges_.find(pair_key(left.id, right.id));
  if (it == merges_.end()) return std::nullopt;
  return Join{it->second.result, static_cast<double>(it->second.rank)};
}

std::optional<Join> SubwordModel::join_by_score(std::string_view text, const Symbol& left,
                                                const Symbol& right) const {
  const int32_t id = find(text.substr(left.begin, left.length + right.length));
  if (id < 0) return std::nullopt;
  return Join{id, -static_cast<double>(recipe_.scores[static_cast<size_t>(id)])};
}

void SubwordModel::add_bytes(std::string_view text, Merger& merger) const {
  for (uint32_t i = 0; i < text.size(); i++) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(text[i])];
    if (id >= 0 || recipe_.unk >= 0) merger.add(id, i, 1);
  }
}

void SubwordModel::add_characters(std::string_view text, Merger& merger) const {
  for (uint32_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text.substr(i));
    const uint32_t n = static_cast<uint32_t>(step.length);
    merger.add(find(text.substr(i, n)), i, n);
    i += n;
  }
}

void SubwordModel::write(std::string_view text, const Merger& merger, std::vector<int32_t>& out) const {
  bool after_unknown = false;
  for (const Symbol& s : merger.symbols()) {
    if (s.length == 0) continue;
    if (s.id >= 0) {
      out.push_back(s.id);
      after_unknown = false;
      continue;
    }
    const std::string_view bytes = text.substr(s.begin, s.length);
    const bool spelled = std::all_of(bytes.begin(), bytes.end(),
                                     [&](char c) { return byte_ids_[static_cast<uint8_t>(c)] >= 0; });
    if (spelled)
      for (const char c : bytes) out.push_back(byte_ids_[static_cast<uint8_t>(c)]);
    else if (recipe_.unk >= 0 && !(after_unknown && recipe_.fuse_unknown))
      out.push_back(recipe_.unk);
    after_unknown = !spelled;
  }
}

void SubwordModel::encode(std::string_view text, Merger& merger, std::vector<int32_t>& out) const {
  merger.clear();
  if (recipe_.kind == TokenizerKind::ByteLevelBpe) {
    if (recipe_.ignore_merges) {
      std::string token;
      for (const char c : text) token += byte_alphabet()[static_cast<uint8_t>(c)];
      if (const int32_t id = find(token); id >= 0) return out.push_back(id);
    }
    add_bytes(text, merger);
  } else {
    add_characters(text, merger);
  }
  if (recipe_.scores.empty())
    merger.merge([&](const Symbol& l, const Symbol& r) { return join_by_rank(l, r); });
  else
    merger.merge([&](const Symbol& l, const Symbol& r) { return join_by_score(text, l, r); });
  write(text, merger, out);
}

}  // namespace kv2
