// SPDX-License-Identifier: Apache-2.0
#include "text/added_tokens.h"

#include "text/utf8.h"

namespace kv2 {
namespace {

/// The character that ends right before `at`; U+FFFD where the bytes are ill-formed.
char32_t character_before(std::string_view text, size_t at, size_t* begin) {
  for (size_t n = 1; n <= 4 && n <= at; n++) {
    const std::string_view s = text.substr(at - n, n);
    if (const Utf8Step step = utf8_step(s); step.status == Utf8Status::Valid && step.length == n) {
      *begin = at - n;
      return utf8_decode(s);
    }
  }
  *begin = at - 1;
  return 0xFFFD;
}

char32_t character_at(std::string_view text, size_t at, size_t* end) {
  const Utf8Step step = utf8_step(text.substr(at));
  *end = at + step.length;
  return step.status == Utf8Status::Valid ? utf8_decode(text.substr(at, step.length)) : 0xFFFD;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  size_t edge = 0;
  return (begin == 0 || !is_word(character_before(text, begin, &edge))) &&
         (end == text.size() || !is_word(character_at(text, end, &edge)));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), token_of_{-1} {
  for (size_t i = 0; i < tokens_.size(); i++) {
    if (tokens_[i].content.empty()) continue;
    starts_[static_cast<uint8_t>(tokens_[i].content[0])] = true;
    uint64_t node = 0;
    for (const char c : tokens_[i].content) {
      const auto [it, fresh] =
          edges_.emplace(node << 8 | static_cast<uint8_t>(c), static_cast<uint32_t>(token_of_.size()));
      if (fresh) token_of_.push_back(-1);
      node = it->second;
    }
    token_of_[node] = static_cast<int32_t>(i);
  }
}

const AddedToken* AddedTokens::longest_at(std::string_view text) const {
  const AddedToken* best = nullptr;
  uint64_t node = 0;
  for (const char c : text) {
    const auto it = edges_.find(node << 8 | static_cast<uint8_t>(c));
    if (it == edges_.end()) break;
    node = it->second;
    if (token_of_[node] >= 0) best = &tokens_[static_cast<size_t>(token_of_[node])];
  }
  return best;
}

AddedTokens::Match AddedTokens::next(std::string_view text, size_t from, Tokenizer::Special special) const {
  for (size_t at = from; at < text.size();) {
    const AddedToken* token = starts_[static_cast<uint8_t>(text[at])] ? longest_at(text.substr(at)) : nullptr;
    if (!token) {
      at++;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    at = end;  // a match that does not count is text as a whole
    if (token->special && special == Tokenizer::Special::AsText) continue;
    if (token->single_word && !stands_alone(text, begin, end)) continue;
    size_t edge = 0;
    while (token->lstrip && begin > from && is_white_space(character_before(text, begin, &edge)))
      begin = edge;
    while (token->rstrip && end < text.size() && is_white_space(character_at(text, end, &edge))) end = edge;
    return {token, begin, end};
  }
  return {};
}

}  // namespace kv2
