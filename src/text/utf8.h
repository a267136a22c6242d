// SPDX-License-Identifier: Apache-2.0
// UTF-8 as it comes: which bytes are well formed (Unicode 15, table 3-7), and where ill-formed ones begin and
// end. Ill-formed bytes are cut as Unicode recommends ("maximal subparts"), the way Python and Rust replace
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kv2 {

enum class Utf8Status : uint8_t {
  Valid,       // `length` bytes are one well-formed character
  Invalid,     // `length` bytes can never be part of one: one U+FFFD
  Incomplete,  // `length` bytes, up to the end of the text, may still become one
};
struct Utf8Step {
  Utf8Status status;
  size_t length;  // >= 1
};

/// The first step of a text that is not empty.
Utf8Step utf8_step(std::string_view text);
/// The code point of one well-formed character.
char32_t utf8_decode(std::string_view character);
void utf8_append(std::string& out, char32_t code_point);
/// Length in bytes of the well-formed beginning of `text` (Valid) or of its ill-formed beginning (anything
/// else).
size_t utf8_run(std::string_view text, bool* valid);
/// Every ill-formed part becomes U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

/// White_Space of Unicode.
bool is_white_space(char32_t c);
/// What regular expressions call \w: letters, marks, decimal digits, connectors, joiners.
bool is_word(char32_t c);
/// Normalization form C of well-formed text.
std::string to_nfc(std::string_view text);

}  // namespace kv2
