// SPDX-License-Identifier: Apache-2.0
// A tokenizer of single characters for tests, as large as the vocabulary of the tiny model: token i is
// kLetters[i], the last one is "th". Other bytes have no token and are dropped.
#pragma once

#include <string>
#include <string_view>

#include "text/byte_alphabet.h"
#include "text/tokenizer.h"

namespace kv2::testing {

inline constexpr std::string_view kLetters =
    "abcdefghijklmnopqrstuvwxyz .-:?\n,0123456789ABCDEFGHIMNOPRSTW";  // 60 of them

inline Tokenizer letters() {
  TokenizerSpec spec;
  spec.pre = "gpt-2";
  for (const char c : kLetters) spec.tokens.push_back(byte_alphabet()[static_cast<uint8_t>(c)]);
  spec.tokens.push_back("th");
  spec.merges.push_back("t h");
  return Tokenizer(spec);
}

}  // namespace kv2::testing
