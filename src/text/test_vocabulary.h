// SPDX-License-Identifier: Apache-2.0
// Small random vocabularies for tests, and slow encoders to compare with: they look at every pair, every
// time.
#pragma once

#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "text/byte_alphabet.h"
#include "text/tokenizer.h"

namespace kv2 {

/// All 256 bytes, then `n` merges of random earlier tokens; no text is made in two ways.
inline TokenizerSpec random_bpe(std::mt19937& rng, int n, std::string pre = "gpt-2") {
  TokenizerSpec spec;
  spec.pre = std::move(pre);
  for (const std::string& c : byte_alphabet()) spec.tokens.push_back(c);
  std::set<std::string> seen(spec.tokens.begin(), spec.tokens.end());
  const std::vector<size_t> letters = {'a', 'b', 'c', 'd', ' ', '1', 0xC3, 0xA9, 0x80};
  while (static_cast<int>(spec.merges.size()) < n) {
    const auto any = [&]() -> const std::string& {
      const bool fresh = spec.tokens.size() == 256 || rng() % 2 == 0;
      return spec.tokens[fresh ? letters[rng() % letters.size()] : 256 + rng() % (spec.tokens.size() - 256)];
    };
    const std::string left = any(), right = any();
    if (!seen.insert(left + right).second) continue;
    spec.merges.push_back(left + " " + right);
    spec.tokens.push_back(left + right);
  }
  return spec;
}

/// The control, byte and unknown tokens of a SentencePiece vocabulary, single letters and `n` random longer
/// pieces.
inline TokenizerSpec random_sentence_piece(std::mt19937& rng, int n) {
  TokenizerSpec spec;
  spec.kind = TokenizerKind::SentencePiece;
  const auto add = [&](std::string token, TokenType type, float score) {
    spec.tokens.push_back(std::move(token));
    spec.types.push_back(type);
    spec.scores.push_back(score);
  };
  add("<unk>", TokenType::Unknown, 0);
  add("<s>", TokenType::Control, 0);
  add("</s>", TokenType::Control, 0);
  spec.unk = 0, spec.bos = 1, spec.eos = 2, spec.add_bos = true;
  for (int b = 0; b < 256; b++) {
    constexpr const char* kHex = "0123456789ABCDEF";
    add(std::string("<0x") + kHex[b / 16] + kHex[b % 16] + ">", TokenType::Byte, 0);
  }
  const size_t n_special = spec.tokens.size();
  const std::vector<std::string> letters = {"▁", "a", "b", "c", "é", "漢"};
  for (const std::string& c : letters) add(c, TokenType::Normal, -1e6f);
  std::set<std::string> seen(spec.tokens.begin(), spec.tokens.end());
  while (static_cast<int>(seen.size()) < static_cast<int>(n_special + letters.size()) + n) {
    const auto any = [&] { return spec.tokens[n_special + rng() % (spec.tokens.size() - n_special)]; };
    const std::string token = any() + any();
    // equal scores on purpose: the leftmost pair wins
    if (seen.insert(token).second) add(token, TokenType::Normal, -static_cast<float>(rng() % 50));
  }
  return spec;
}

/// Joins the best pair (lowest cost, then leftmost) of `pieces` until cost(left + right) is infinite
/// everywhere.
template <class Cost>
std::vector<std::string> join_slowly(std::vector<std::string> pieces, const Cost& cost) {
  for (;;) {
    size_t best = 0;
    double lowest = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i + 1 < pieces.size(); i++)
      if (const double c = cost(pieces[i], pieces[i + 1]); c < lowest) lowest = c, best = i;
    if (lowest == std::numeric_limits<double>::infinity()) return pieces;
    pieces[best] += pieces[best + 1];
    pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

inline std::string random_text(std::mt19937& rng, const std::vector<std::string>& parts, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; i++) out += parts[rng() % parts.size()];
  return out;
}

inline std::string random_bytes(std::mt19937& rng, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; i++) out += static_cast<char>(static_cast<uint8_t>(rng()));
  return out;
}

}  // namespace kv2
