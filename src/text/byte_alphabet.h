// SPDX-License-Identifier: Apache-2.0
// The alphabet of byte-level BPE (GPT-2): every byte has one printable character, so that tokens are plain
// text. Printable Latin-1 bytes stand for themselves; the other 68 are U+0100, U+0101, … in byte order (space
// is "Ġ").
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace kv2 {

/// The character (UTF-8) of each byte.
const std::array<std::string, 256>& byte_alphabet();
/// A token of that alphabet as the bytes it stands for; a token with any other character is text and stays as
/// it is.
std::string bytes_of_token(std::string_view token);

}  // namespace kv2
