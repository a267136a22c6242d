// SPDX-License-Identifier: Apache-2.0
#include "text/byte_alphabet.h"

#include "text/utf8.h"

namespace kv2 {
namespace {

constexpr int kFirstStandIn = 0x100, kStandIns = 68;

bool stands_for_itself(int b) {
  return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<int, kFirstStandIn + kStandIns> bytes;  // by code point; -1: not in the alphabet

  Alphabet() {
    bytes.fill(-1);
    int next = kFirstStandIn;
    for (int b = 0; b < 256; b++) {
      const int c = stands_for_itself(b) ? b : next++;
      utf8_append(characters[static_cast<size_t>(b)], static_cast<char32_t>(c));
      bytes[static_cast<size_t>(c)] = b;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet a;
  return a;
}

}  // namespace

const std::array<std::string, 256>& byte_alphabet() {
  return alphabet().characters;
}

std::string bytes_of_token(std::string_view token) {
  std::string out;
  for (std::string_view rest = token; !rest.empty();) {
    const Utf8Step step = utf8_step(rest);
    const char32_t c = step.status == Utf8Status::Valid ? utf8_decode(rest.substr(0, step.length)) : 0xFFFD;
    if (c >= alphabet().bytes.size() || alphabet().bytes[c] < 0) return std::string(token);
    out.push_back(static_cast<char>(static_cast<uint8_t>(alphabet().bytes[c])));
    rest.remove_prefix(step.length);
  }
  return out;
}

}  // namespace kv2
