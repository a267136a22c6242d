// SPDX-License-Identifier: Apache-2.0
// Codes of 1, 2, 3, 4 or 8 bits as a little-endian bit string: code i in bits i·bits …, lowest first. Runs of
// 8 codes are whole bytes, so rows of a multiple of 8 codes are, too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kv2 {

/// Bytes of n codes.
constexpr size_t code_bytes(size_t n, int bits) {
  return (n * static_cast<size_t>(bits) + 7) / 8;
}

/// codes [n], one per byte -> code_bytes(n, bits) bytes.
void pack_codes(const uint8_t* codes, size_t n, int bits, uint8_t* packed);
void unpack_codes(const uint8_t* packed, size_t n, int bits, uint8_t* codes);

}  // namespace kv2
