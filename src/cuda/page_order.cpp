// SPDX-License-Identifier: Apache-2.0
#include "cuda/page_order.h"

#include <cstring>

namespace kv2::cuda {
namespace {

/// visit(canonical index, own index) of all elements of a full page, in halves.
template <class Visit>
void for_each_value(int d, const Visit& visit) {
  const int v = kPageTokens * d;
  for (int token = 0; token < kPageTokens; token++)
    for (int c = 0; c < d; c++) {
      visit(token * d + c, full_k_at(d, token, c));
      visit(v + token * d + c, v + full_v_at(d, token, c));
    }
}

/// visit(byte of the canonical page, its lowest bit, word of the own page, its lowest bit) of all codes.
template <class Visit>
void for_each_code(const Int2Layout& layout, const Visit& visit) {
  const int d = layout.head_dim, v = static_cast<int>(layout.codes_bytes());
  for (int token = 0; token < kPageTokens; token++)
    for (int c = 0; c < d; c++) {
      const int byte = token * (d / 4) + c / 4, bit = 2 * (c % 4);
      const CodeAt k_at = packed_k_at(d, token, c), v_at = packed_v_at(d, token, c);
      visit(byte, bit, k_at.word, k_at.bit);
      visit(v + byte, bit, v / 4 + v_at.word, v_at.bit);
    }
}

}  // namespace

void full_to_canonical(const std::byte* own, int d, std::byte* canonical) {
  for_each_value(d, [&](int to, int from) { std::memcpy(canonical + 2 * to, own + 2 * from, 2); });
}

void full_from_canonical(const std::byte* canonical, int d, std::byte* own) {
  for_each_value(d, [&](int from, int to) { std::memcpy(own + 2 * to, canonical + 2 * from, 2); });
}

void packed_to_canonical(const std::byte* own, const Int2Layout& layout, std::byte* canonical) {
  std::memcpy(canonical, own, layout.bytes());  // params, and all of it where there is no order of our own
  if (!fragments_packed(layout.head_dim, layout.group)) return;
  std::memset(canonical, 0, 2 * layout.codes_bytes());
  for_each_code(layout, [&](int byte, int bit, int word, int from) {
    uint32_t w;
    std::memcpy(&w, own + 4 * word, 4);
    canonical[byte] |= static_cast<std::byte>((w >> from & 3) << bit);
  });
}

void packed_from_canonical(const std::byte* canonical, const Int2Layout& layout, std::byte* own) {
  std::memcpy(own, canonical, layout.bytes());
  if (!fragments_packed(layout.head_dim, layout.group)) return;
  std::memset(own, 0, 2 * layout.codes_bytes());
  for_each_code(layout, [&](int byte, int bit, int word, int to) {
    uint32_t w;
    std::memcpy(&w, own + 4 * word, 4);
    w |= (static_cast<uint32_t>(canonical[byte]) >> bit & 3) << to;
    std::memcpy(own + 4 * word, &w, 4);
  });
}

}  // namespace kv2::cuda
