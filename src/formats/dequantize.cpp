// SPDX-License-Identifier: Apache-2.0
#include "formats/dequantize.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "formats/block_layouts.h"

namespace kv2 {
namespace {

void decode_block(float x, float* out) {
  out[0] = x;
}
void decode_block(fp16 x, float* out) {
  out[0] = to_float(x);
}
void decode_block(bf16 x, float* out) {
  out[0] = to_float(x);
}

void decode_block(const Q4_0& b, float* out) {
  const float d = to_float(b.d);
  for (int j = 0; j < 16; j++) {
    out[j] = d * static_cast<float>((b.qs[j] & 15) - 8);
    out[j + 16] = d * static_cast<float>((b.qs[j] >> 4) - 8);
  }
}

void decode_block(const Q4_1& b, float* out) {
  const float d = to_float(b.d), m = to_float(b.m);
  for (int j = 0; j < 16; j++) {
    out[j] = d * static_cast<float>(b.qs[j] & 15) + m;
    out[j + 16] = d * static_cast<float>(b.qs[j] >> 4) + m;
  }
}

int high_bit(const uint8_t* qh, int element) {
  return ((qh[element / 8] >> (element % 8)) & 1) << 4;
}

void decode_block(const Q5_0& b, float* out) {
  const float d = to_float(b.d);
  for (int j = 0; j < 16; j++) {
    out[j] = d * static_cast<float>(((b.qs[j] & 15) | high_bit(b.qh, j)) - 16);
    out[j + 16] = d * static_cast<float>(((b.qs[j] >> 4) | high_bit(b.qh, j + 16)) - 16);
  }
}

void decode_block(const Q5_1& b, float* out) {
  const float d = to_float(b.d), m = to_float(b.m);
  for (int j = 0; j < 16; j++) {
    out[j] = d * static_cast<float>((b.qs[j] & 15) | high_bit(b.qh, j)) + m;
    out[j + 16] = d * static_cast<float>((b.qs[j] >> 4) | high_bit(b.qh, j + 16)) + m;
  }
}

void decode_block(const Q8_0& b, float* out) {
  const float d = to_float(b.d);
  for (int j = 0; j < 32; j++) out[j] = d * static_cast<float>(b.qs[j]);
}

void decode_block(const Q2_K& b, float* out) {
  const float d = to_float(b.d), dmin = to_float(b.dmin);
  for (int s = 0; s < 16; s++) {
    const float scale = d * static_cast<float>(b.scales[s] & 15),
                min = dmin * static_cast<float>(b.scales[s] >> 4);
    const int run = s / 8, plane = s % 8 / 2, l0 = s % 2 * 16;
    for (int l = 0; l < 16; l++) {
      const int q = (b.qs[32 * run + l0 + l] >> (2 * plane)) & 3;
      out[16 * s + l] = scale * static_cast<float>(q) - min;
    }
  }
}

void decode_block(const Q3_K& b, float* out) {
  const float d = to_float(b.d);
  for (int s = 0; s < 16; s++) {
    // Low four bits: nibbles of scales[0..7]; high two: bit pairs of scales[8..11].
    const int low = s < 8 ? b.scales[s] & 15 : b.scales[s - 8] >> 4,
              high = (b.scales[8 + s % 4] >> (2 * (s / 4))) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    const int run = s / 8, plane = s % 8 / 2, l0 = s % 2 * 16;
    for (int l = 0; l < 16; l++) {
      const int low2 = (b.qs[32 * run + l0 + l] >> (2 * plane)) & 3;
      const int q = low2 - ((b.hmask[l0 + l] >> (4 * run + plane)) & 1 ? 0 : 4);
      out[16 * s + l] = scale * static_cast<float>(q);
    }
  }
}

struct ScaleMin {
  int scale, min;
};
// Q4_K and Q5_K: 8 scales and 8 mins of 6 bits in 12 bytes. Sub-blocks 0…3: low 6 bits of bytes s and s + 4.
// Sub-blocks 4…7: nibbles of byte s + 4, their top two bits in the top of bytes s - 4 (scale) and s (min).
ScaleMin scale_min(const uint8_t* p, int s) {
  if (s < 4) return {p[s] & 63, p[s + 4] & 63};
  return {(p[s + 4] & 15) | (p[s - 4] >> 6) << 4, (p[s + 4] >> 4) | (p[s] >> 6) << 4};
}

void decode_block(const Q4_K& b, float* out) {
  const float d = to_float(b.d), dmin = to_float(b.dmin);
  for (int s = 0; s < 8; s++) {
    const ScaleMin sm = scale_min(b.scales, s);
    const float scale = d * static_cast<float>(sm.scale), min = dmin * static_cast<float>(sm.min);
    for (int l = 0; l < 32; l++) {
      const int q = (b.qs[32 * (s / 2) + l] >> (4 * (s % 2))) & 15;
      out[32 * s + l] = scale * static_cast<float>(q) - min;
    }
  }
}

void decode_block(const Q5_K& b, float* out) {
  const float d = to_float(b.d), dmin = to_float(b.dmin);
  for (int s = 0; s < 8; s++) {
    const ScaleMin sm = scale_min(b.scales, s);
    const float scale = d * static_cast<float>(sm.scale), min = dmin * static_cast<float>(sm.min);
    for (int l = 0; l < 32; l++) {
      const int q = ((b.qs[32 * (s / 2) + l] >> (4 * (s % 2))) & 15) | ((b.qh[l] >> s) & 1) << 4;
      out[32 * s + l] = scale * static_cast<float>(q) - min;
    }
  }
}

void decode_block(const Q6_K& b, float* out) {
  const float d = to_float(b.d);
  for (int s = 0; s < 16; s++) {
    const float scale = d * static_cast<float>(b.scales[s]);
    const int run = s / 8, plane = s % 8 / 2,
              l0 = s % 2 * 16;  // plane p: qh bits 2p; ql half p % 2, nibble p / 2
    for (int l = 0; l < 16; l++) {
      const int low = (b.ql[64 * run + 32 * (plane % 2) + l0 + l] >> (4 * (plane / 2))) & 15;
      const int high = (b.qh[32 * run + l0 + l] >> (2 * plane)) & 3;
      out[16 * s + l] = scale * static_cast<float>((low | high << 4) - 32);
    }
  }
}

template <class Block, int kElements>
void decode(const std::byte* blocks, int64_t n_blocks, float* out) {
  for (int64_t i = 0; i < n_blocks; i++, blocks += sizeof(Block), out += kElements) {
    Block b;
    std::memcpy(&b, blocks, sizeof b);
    decode_block(b, out);
  }
}

template <class Block, int kElements>
constexpr BlockType row(uint32_t id, std::string_view name) {
  return {id, name, kElements, sizeof(Block), &decode<Block, kElements>};
}
constexpr BlockType size_only(uint32_t id, std::string_view name, int64_t elements, size_t bytes) {
  return {id, name, elements, bytes, nullptr};
}

constexpr std::array kTypes = {
    row<float, 1>(0, "F32"),
    row<fp16, 1>(1, "F16"),
    row<bf16, 1>(30, "BF16"),
    row<Q4_0, 32>(2, "Q4_0"),
    row<Q4_1, 32>(3, "Q4_1"),
    row<Q5_0, 32>(6, "Q5_0"),
    row<Q5_1, 32>(7, "Q5_1"),
    row<Q8_0, 32>(8, "Q8_0"),
    row<Q2_K, 256>(10, "Q2_K"),
    row<Q3_K, 256>(11, "Q3_K"),
    row<Q4_K, 256>(12, "Q4_K"),
    row<Q5_K, 256>(13, "Q5_K"),
    row<Q6_K, 256>(14, "Q6_K"),
    // Listed by `kv2 inspect` and refused when read.
    size_only(15, "Q8_K", 256, 292),
    size_only(16, "IQ2_XXS", 256, 66),
    size_only(17, "IQ2_XS", 256, 74),
    size_only(18, "IQ3_XXS", 256, 98),
    size_only(19, "IQ1_S", 256, 50),
    size_only(20, "IQ4_NL", 32, 18),
    size_only(21, "IQ3_S", 256, 110),
    size_only(22, "IQ2_S", 256, 82),
    size_only(23, "IQ4_XS", 256, 136),
    size_only(24, "I8", 1, 1),
    size_only(25, "I16", 1, 2),
    size_only(26, "I32", 1, 4),
    size_only(27, "I64", 1, 8),
    size_only(28, "F64", 1, 8),
    size_only(29, "IQ1_M", 256, 56),
    size_only(34, "TQ1_0", 256, 54),
    size_only(35, "TQ2_0", 256, 66),
    size_only(39, "MXFP4", 32, 17),
    size_only(40, "NVFP4", 64, 36),
    size_only(41, "Q1_0", 128, 18),
};

}  // namespace

const BlockType* find_block_type(uint32_t gguf_id) {
  for (const BlockType& t : kTypes)
    if (t.gguf_id == gguf_id) return &t;
  return nullptr;
}

const BlockType* find_block_type(std::string_view name) {
  for (const BlockType& t : kTypes)
    if (t.name == name) return &t;
  return nullptr;
}

std::string decodable_types() {
  std::string out;
  for (const BlockType& t : kTypes)
    if (t.decode) out.append(out.empty() ? "" : " ").append(t.name);
  return out;
}

void decode_elements(const BlockType& type, std::span<const std::byte> bytes, int64_t first, int64_t n,
                     float* out) {
  constexpr int64_t kMaxBlock = 256;
  const int64_t per = type.block_elements, end = first + n;
  KV2_CHECK(type.decode && per <= kMaxBlock);
  KV2_CHECK(
      first >= 0 && n >= 0 && (end + per - 1) / per <= static_cast<int64_t>(bytes.size() / type.block_bytes),
      "elements {} to {} of {} bytes of {}", first, end, bytes.size(), type.name);
  while (first < end) {
    const int64_t block = first / per, skip = first % per;
    const std::byte* at = bytes.data() + static_cast<size_t>(block) * type.block_bytes;
    const int64_t whole = skip == 0 ? (end - first) / per : 0;
    int64_t taken = whole * per;
    if (whole > 0) {
      type.decode(at, whole, out);
    } else {  // part of a block at either end
      float part[kMaxBlock];
      type.decode(at, 1, part);
      taken = std::min(per - skip, end - first);
      std::copy_n(part + skip, taken, out);
    }
    first += taken;
    out += taken;
  }
}

}  // namespace kv2
