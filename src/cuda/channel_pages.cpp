// SPDX-License-Identifier: Apache-2.0
#include "cuda/channel_pages.h"

#include <cstring>
#include <vector>

#include "cuda/attend_plan.h"
#include "cuda/channel_order.h"

namespace kv2::cuda {
namespace {

/// change(head of K or V, is_v) for all of them.
template <class Change>
void for_each_head(const LayerLayout& layer, const KvShape& shape, std::byte* part, const Change& change) {
  const size_t bytes = static_cast<size_t>(channel_head_bytes(shape.head_dim));
  for (const bool is_v : {false, true}) {
    const size_t all = is_v ? layer.v_bytes : layer.k_bytes;
    std::byte* first = part + (is_v ? layer.k_bytes : 0) + (all - bytes * shape.n_kv_heads);  // after norms
    for (int h = 0; h < shape.n_kv_heads; h++) change(first + h * bytes, is_v);
  }
}

/// visit(bit of a canonical head, word of the own one, its lowest bit) of all codes.
template <class Visit>
void for_each_code(int d, bool is_v, const Visit& visit) {
  for (int word = 0; word < channel_codes_bytes(d) / 4; word++)
    for (int f = 0; f < 4; f++)
      for (int byte = 0; byte < 4; byte++) {
        const CodeOf of = is_v ? channel_v_of(word, f, byte) : channel_k_of(word, f, byte);
        visit(2 * (is_v ? of.token * d + of.channel : of.channel * kPageTokens + of.token), word,
              8 * byte + 2 * f);
      }
}

}  // namespace

bool in_channel_order(const LayerLayout& layer, const KvShape& shape) {
  const auto two_bits = [](const SideFormat& side, CodecId codec) {
    return side.codec == codec && side.bits == 2 && side.group == kChannelGroup &&
           side.offset == OffsetKind::Stored && side.kept == 0 && side.wide == 0;
  };
  return two_bits(layer.k, CodecId::Channel) && two_bits(layer.v, CodecId::Affine) &&
         layer.v.norm == TokenNorm::Off && attend_channels_has(shape.head_dim);
}

void channels_to_canonical(const LayerLayout& layer, const KvShape& shape, std::byte* part) {
  const int d = shape.head_dim;
  for_each_head(layer, shape, part, [&](std::byte* head, bool is_v) {
    const std::vector<std::byte> own(head, head + channel_head_bytes(d));
    std::memset(head, 0, static_cast<size_t>(channel_codes_bytes(d)));
    for_each_code(d, is_v, [&](int bit, int word, int from) {
      uint32_t w;
      std::memcpy(&w, own.data() + 4 * word, 4);
      head[bit / 8] |= static_cast<std::byte>((w >> from & 3) << (bit % 8));
    });
    for (int i = 0; i < 4 * d; i++)
      std::memcpy(head + channel_codes_bytes(d) + 2 * i,
                  own.data() + channel_codes_bytes(d) + 2 * channel_param_at(is_v, d, i), 2);
  });
}

void channels_from_canonical(const LayerLayout& layer, const KvShape& shape, std::byte* part) {
  const int d = shape.head_dim;
  for_each_head(layer, shape, part, [&](std::byte* head, bool is_v) {
    const std::vector<std::byte> canonical(head, head + channel_head_bytes(d));
    std::memset(head, 0, static_cast<size_t>(channel_codes_bytes(d)));
    for_each_code(d, is_v, [&](int bit, int word, int to) {
      uint32_t w;
      std::memcpy(&w, head + 4 * word, 4);
      w |= (static_cast<uint32_t>(canonical[static_cast<size_t>(bit / 8)]) >> (bit % 8) & 3) << to;
      std::memcpy(head + 4 * word, &w, 4);
    });
    for (int i = 0; i < 4 * d; i++)
      std::memcpy(head + channel_codes_bytes(d) + 2 * channel_param_at(is_v, d, i),
                  canonical.data() + channel_codes_bytes(d) + 2 * i, 2);
  });
}

}  // namespace kv2::cuda
