// SPDX-License-Identifier: Apache-2.0
// The order of channel_order.h on the host: nothing is lost, and every code and param is where the kernel
// looks for it.
#include "cuda/channel_pages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "base/float16.h"
#include "cuda/attend_plan.h"
#include "cuda/channel_order.h"
#include "quant/page_codec.h"

namespace kv2::cuda {
namespace {

LayerLayout layer_of(const KvShape& shape, TokenNorm norm) {
  LayerLayout layer;
  layer.k = {.codec = CodecId::Channel, .bits = 2, .group = kChannelGroup, .norm = norm};
  layer.v = {.codec = CodecId::Affine, .bits = 2, .group = kChannelGroup};
  layer.k_bytes = page_codec(layer.k.codec).bytes(layer.k, shape);
  layer.v_bytes = page_codec(layer.v.codec).bytes(layer.v, shape);
  return layer;
}

std::vector<std::byte> random_bytes(size_t n) {
  std::mt19937 random(static_cast<unsigned>(n));
  std::vector<std::byte> out(n);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  return out;
}

TEST(ChannelPages, CanonicalBytesSurviveTheRoundTrip) {
  for (const int d : {64, 128})
    for (const TokenNorm norm : {TokenNorm::Off, TokenNorm::AllHeads}) {
      const KvShape shape{1, 3, 3, d};
      const LayerLayout layer = layer_of(shape, norm);
      const std::vector<std::byte> canonical = random_bytes(layer.bytes());
      std::vector<std::byte> own = canonical;
      channels_from_canonical(layer, shape, own.data());
      EXPECT_NE(own, canonical);
      channels_to_canonical(layer, shape, own.data());
      EXPECT_EQ(own, canonical) << d;
    }
}

TEST(ChannelPages, OtherFormatsStayCanonical) {
  const KvShape shape{1, 3, 3, 128};
  const LayerLayout layer = layer_of(shape, TokenNorm::AllHeads);
  EXPECT_EQ(in_channel_order(layer, shape), attend_channels_has(128));
  for (const auto change : {+[](LayerLayout& l) { l.k.group = 64; }, +[](LayerLayout& l) { l.k.kept = 1; },
                            +[](LayerLayout& l) { l.k.wide = 8; }, +[](LayerLayout& l) { l.v.bits = 4; },
                            +[](LayerLayout& l) { l.v.group = 128; }, +[](LayerLayout& l) { l.k = l.v; }}) {
    LayerLayout other = layer;
    change(other);
    EXPECT_FALSE(in_channel_order(other, shape));
  }
  EXPECT_FALSE(in_channel_order(layer, {1, 3, 3, 96}));
}

float half_at(const std::byte* head, int d, int i) {
  fp16 x;
  std::memcpy(&x, head + channel_codes_bytes(d) + 2 * i, 2);
  return to_float(x);
}

/// Fragment f of one register of a word: codes of four columns.
int code_in(const std::byte* head, int word, int f, int byte) {
  return static_cast<int>(head[4 * word + byte]) >> (2 * f) & 3;
}

/// Sums as lanes see them, by the places that attend_channels.cuh reads from, against the codec's own
/// decoder.
TEST(ChannelPages, LanesFindWhatTheCodecDecodes) {
  for (const int d : {64, 128}) {
    const KvShape shape{1, 2, 2, d};
    const LayerLayout layer = layer_of(shape, TokenNorm::Off);
    std::vector<std::byte> page(layer.bytes());
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0.3f, 1.0f);
    std::vector<bf16> rows(size_t{2} * kPageTokens * d);
    for (bf16& x : rows) x = to_bf16(normal(random));
    const size_t head_values = static_cast<size_t>(kPageTokens) * d;
    page_codec(layer.k.codec).encode({layer.k, shape}, {rows.data(), head_values}, {}, page.data());
    page_codec(layer.v.codec)
        .encode({layer.v, shape}, {rows.data(), head_values}, {}, page.data() + layer.k_bytes);
    std::vector<float> k(head_values), v(head_values);
    page_codec(layer.k.codec).decode({layer.k, shape}, page.data(), 1, k.data());
    page_codec(layer.v.codec).decode({layer.v, shape}, page.data() + layer.k_bytes, 1, v.data());
    channels_from_canonical(layer, shape, page.data());
    const std::byte* k_head = page.data() + channel_head_bytes(d);
    const std::byte* v_head = page.data() + layer.k_bytes + channel_head_bytes(d);
    std::set<int> seen;
    for (int step = 0; step < d / 32; step++)
      for (int lane = 0; lane < 32; lane++)
        for (int reg = 0; reg < 4; reg++)
          for (int f = 0; f < 4; f++)
            for (int byte = 0; byte < 4; byte++) {
              const int g = lane / 4, t = lane % 4, r = reg % 2, x = reg / 2;
              const int own = 2 * f + r, token = own < 4 ? 4 * g + own : 32 + 4 * g + own - 4;
              const int channel = 32 * step + 16 * x + 4 * t + byte, group = f / 2;
              // scale: 16 bytes of lane (x, t), entry step % 2, byte; offset: row g of group 0, g + 8 of 1
              const int scale_chunk = ((group * (d / 64) + step / 2) * 2 + x) * 4 + t;
              const float scale = half_at(k_head, d, 8 * scale_chunk + 4 * (step % 2) + byte);
              const int in_tile = channel % 16;
              const int offset_chunk = (channel / 16) * 4 + in_tile % 8 / 2;
              const float offset = half_at(
                  k_head, d, 2 * d + 8 * offset_chunk + 2 * (group + 2 * (in_tile / 8)) + channel % 2);
              const int code = code_in(k_head, (step * 32 + lane) * 4 + reg, f, byte);
              EXPECT_EQ(scale * static_cast<float>(code) + offset,
                        k[static_cast<size_t>(token) * d + channel]);
              seen.insert(token * d + channel);
            }
    EXPECT_EQ(seen.size(), head_values);
    seen.clear();
    for (int quad = 0; quad < d / 64; quad++)
      for (int step = 0; step < 2; step++)
        for (int lane = 0; lane < 32; lane++)
          for (int reg = 0; reg < 4; reg++)
            for (int f = 0; f < 4; f++)
              for (int byte = 0; byte < 4; byte++) {
                const int channel = 16 * (4 * quad + f) + lane / 4 + 8 * (reg % 2), t = lane % 4;
                // weights come from lane g = 2t + byte / 2, its tokens 2j and 2j + 1 with j = 2 step + reg /
                // 2
                const int g = 2 * t + byte / 2, own = 2 * (2 * step + reg / 2) + byte % 2;
                const int token = own < 4 ? 4 * g + own : 32 + 4 * g + own - 4, group = channel / 32;
                const float scale = half_at(v_head, d, 8 * (16 * group + g) + own);
                const float offset = half_at(v_head, d, 8 * (16 * group + 8 + g) + own);
                const int code = code_in(v_head, ((quad * 2 + step) * 32 + lane) * 4 + reg, f, byte);
                EXPECT_EQ(scale * static_cast<float>(code) + offset,
                          v[static_cast<size_t>(token) * d + channel]);
                seen.insert(token * d + channel);
              }
    EXPECT_EQ(seen.size(), head_values);
  }
}

}  // namespace
}  // namespace kv2::cuda
