// SPDX-License-Identifier: Apache-2.0
#include "quant/bit_string.h"

#include <cstring>

namespace kv2 {
namespace {

/// 8 codes in `bits` bytes.
template <int bits>
void pack_eights(const uint8_t* codes, size_t n, uint8_t* packed) {
  for (size_t i = 0; i + 8 <= n; i += 8, packed += bits) {
    uint64_t word = 0;
    for (int j = 0; j < 8; j++) word |= static_cast<uint64_t>(codes[i + j]) << (bits * j);
    for (int j = 0; j < bits; j++) packed[j] = static_cast<uint8_t>(word >> (8 * j));
  }
}

template <int bits>
void unpack_eights(const uint8_t* packed, size_t n, uint8_t* codes) {
  for (size_t i = 0; i + 8 <= n; i += 8, packed += bits) {
    uint64_t word = 0;
    for (int j = 0; j < bits; j++) word |= static_cast<uint64_t>(packed[j]) << (8 * j);
    for (int j = 0; j < 8; j++) codes[i + j] = static_cast<uint8_t>(word >> (bits * j) & ((1u << bits) - 1));
  }
}

template <class Body>
void with_bits(int bits, const Body& body) {
  switch (bits) {
    case 1:
      return body.template operator()<1>();
    case 2:
      return body.template operator()<2>();
    case 3:
      return body.template operator()<3>();
    case 4:
      return body.template operator()<4>();
    default:
      return body.template operator()<8>();
  }
}

}  // namespace

void pack_codes(const uint8_t* codes, size_t n, int bits, uint8_t* packed) {
  if (bits == 8) return void(std::memcpy(packed, codes, n));
  with_bits(bits, [&]<int b>() { pack_eights<b>(codes, n, packed); });
  const size_t whole = n / 8 * 8;
  if (whole == n) return;
  uint8_t last[8] = {}, bytes[8];
  std::memcpy(last, codes + whole, n - whole);
  with_bits(bits, [&]<int b>() { pack_eights<b>(last, 8, bytes); });
  std::memcpy(packed + code_bytes(whole, bits), bytes, code_bytes(n, bits) - code_bytes(whole, bits));
}

void unpack_codes(const uint8_t* packed, size_t n, int bits, uint8_t* codes) {
  if (bits == 8) return void(std::memcpy(codes, packed, n));
  with_bits(bits, [&]<int b>() { unpack_eights<b>(packed, n, codes); });
  const size_t whole = n / 8 * 8, rest = code_bytes(n, bits) - code_bytes(whole, bits);
  if (whole == n) return;
  uint8_t last[8], bytes[8] = {};
  std::memcpy(bytes, packed + code_bytes(whole, bits), rest);
  with_bits(bits, [&]<int b>() { unpack_eights<b>(bytes, 8, last); });
  std::memcpy(codes + whole, last, n - whole);
}

}  // namespace kv2
