// SPDX-License-Identifier: Apache-2.0
#include "formats/weight_codes.h"

#include <array>
#include <cstring>

#include "base/check.h"
#include "formats/block_layouts.h"
#include "formats/dequantize.h"

namespace kv2 {
namespace {

/// Where one block's parts go.
struct Out {
  uint8_t* codes;
  float *scale, *offset;
};

template <class Block>
int high_bit(const Block& b, int element) {
  return ((b.qh[element / 8] >> (element % 8)) & 1) << 4;
}

template <class Block>
void nibbles(const Block& b, uint8_t* codes) {
  for (int j = 0; j < 16; j++) {
    codes[j] = b.qs[j] & 15;
    codes[j + 16] = b.qs[j] >> 4;
  }
}

void split(const Q4_0& b, Out o) {
  nibbles(b, o.codes);
  *o.scale = to_float(b.d);
}
void split(const Q4_1& b, Out o) {
  nibbles(b, o.codes);
  *o.scale = to_float(b.d);
  *o.offset = to_float(b.m);
}
void split(const Q5_0& b, Out o) {
  nibbles(b, o.codes);
  for (int j = 0; j < 32; j++) o.codes[j] = static_cast<uint8_t>(o.codes[j] | high_bit(b, j));
  *o.scale = to_float(b.d);
}
void split(const Q5_1& b, Out o) {
  nibbles(b, o.codes);
  for (int j = 0; j < 32; j++) o.codes[j] = static_cast<uint8_t>(o.codes[j] | high_bit(b, j));
  *o.scale = to_float(b.d);
  *o.offset = to_float(b.m);
}
void split(const Q8_0& b, Out o) {
  for (int j = 0; j < 32; j++) o.codes[j] = static_cast<uint8_t>(b.qs[j] + 128);
  *o.scale = to_float(b.d);
}

void split(const Q2_K& b, Out o) {
  for (int s = 0; s < 16; s++) {
    o.scale[s] = to_float(b.d) * static_cast<float>(b.scales[s] & 15);
    o.offset[s] = -(to_float(b.dmin) * static_cast<float>(b.scales[s] >> 4));
    for (int l = 0; l < 16; l++)
      o.codes[16 * s + l] = (b.qs[32 * (s / 8) + s % 2 * 16 + l] >> (2 * (s % 8 / 2))) & 3;
  }
}
void split(const Q3_K& b, Out o) {
  for (int s = 0; s < 16; s++) {
    const int low = s < 8 ? b.scales[s] & 15 : b.scales[s - 8] >> 4,
              high = (b.scales[8 + s % 4] >> (2 * (s / 4))) & 3;
    o.scale[s] = to_float(b.d) * static_cast<float>((low | high << 4) - 32);
    const int run = s / 8, plane = s % 8 / 2, l0 = s % 2 * 16;
    for (int l = 0; l < 16; l++) {
      const int low2 = (b.qs[32 * run + l0 + l] >> (2 * plane)) & 3,
                bit = (b.hmask[l0 + l] >> (4 * run + plane)) & 1;
      o.codes[16 * s + l] = static_cast<uint8_t>(low2 + 4 * bit);
    }
  }
}

// Scales and mins of 6 bits, see scale_min in dequantize.cpp.
template <class Block>
void split_scales(const Block& b, Out o) {
  const uint8_t* p = b.scales;
  for (int s = 0; s < 8; s++) {
    const int scale = s < 4 ? p[s] & 63 : (p[s + 4] & 15) | (p[s - 4] >> 6) << 4;
    const int min = s < 4 ? p[s + 4] & 63 : (p[s + 4] >> 4) | (p[s] >> 6) << 4;
    o.scale[s] = to_float(b.d) * static_cast<float>(scale);
    o.offset[s] = -(to_float(b.dmin) * static_cast<float>(min));
    for (int l = 0; l < 32; l++) o.codes[32 * s + l] = (b.qs[32 * (s / 2) + l] >> (4 * (s % 2))) & 15;
  }
}
void split(const Q4_K& b, Out o) {
  split_scales(b, o);
}
void split(const Q5_K& b, Out o) {
  split_scales(b, o);
  for (int s = 0; s < 8; s++)
    for (int l = 0; l < 32; l++)
      o.codes[32 * s + l] = static_cast<uint8_t>(o.codes[32 * s + l] | ((b.qh[l] >> s) & 1) << 4);
}
void split(const Q6_K& b, Out o) {
  for (int s = 0; s < 16; s++) {
    o.scale[s] = to_float(b.d) * static_cast<float>(b.scales[s]);
    const int run = s / 8, plane = s % 8 / 2, l0 = s % 2 * 16;
    for (int l = 0; l < 16; l++) {
      const int low = (b.ql[64 * run + 32 * (plane % 2) + l0 + l] >> (4 * (plane / 2))) & 15;
      o.codes[16 * s + l] = static_cast<uint8_t>(low | ((b.qh[32 * run + l0 + l] >> (2 * plane)) & 3) << 4);
    }
  }
}

template <class Block>
void split_all(const std::byte* blocks, int64_t n, int elements, int per_block, Out o) {
  for (int64_t i = 0; i < n; i++, blocks += sizeof(Block)) {
    Block b;
    std::memcpy(&b, blocks, sizeof b);
    split(b, {o.codes + i * elements, o.scale + i * per_block, o.offset + i * per_block});
  }
}

struct Entry {
  std::string_view type;
  CodeFormat format;
  void (*split)(const std::byte*, int64_t, int, int, Out);
};
constexpr std::array kEntries = {
    Entry{"Q4_0", {4, 32, 8, false}, &split_all<Q4_0>},   Entry{"Q4_1", {4, 32, 0, true}, &split_all<Q4_1>},
    Entry{"Q5_0", {6, 32, 16, false}, &split_all<Q5_0>},  Entry{"Q5_1", {6, 32, 0, true}, &split_all<Q5_1>},
    Entry{"Q8_0", {8, 32, 128, false}, &split_all<Q8_0>}, Entry{"Q2_K", {4, 16, 0, true}, &split_all<Q2_K>},
    Entry{"Q3_K", {4, 16, 4, false}, &split_all<Q3_K>},   Entry{"Q4_K", {4, 32, 0, true}, &split_all<Q4_K>},
    Entry{"Q5_K", {6, 32, 0, true}, &split_all<Q5_K>},    Entry{"Q6_K", {6, 16, 32, false}, &split_all<Q6_K>},
};

const Entry* find(std::string_view type) {
  for (const Entry& e : kEntries)
    if (e.type == type) return &e;
  return nullptr;
}

}  // namespace

std::optional<CodeFormat> code_format(std::string_view type) {
  const Entry* e = find(type);
  return e ? std::optional(e->format) : std::nullopt;
}

void read_codes(const TensorFile& file, const TensorInfo& tensor, int64_t row0, int64_t n, uint8_t* codes,
                float* scale, float* offset) {
  const Entry* e = find(tensor.type);
  const BlockType* type = find_block_type(tensor.type);
  KV2_CHECK(e && type && tensor.shape.size() == 2, "{} of type {} has no codes", tensor.name, tensor.type);
  const int64_t blocks = tensor.shape[1] / type->block_elements;
  const auto bytes = file.raw(tensor);
  const size_t row_bytes = static_cast<size_t>(blocks) * type->block_bytes;
  KV2_CHECK(row0 >= 0 && static_cast<size_t>(row0 + n) * row_bytes <= bytes.size(), "rows of {}",
            tensor.name);
  e->split(bytes.data() + static_cast<size_t>(row0) * row_bytes, n * blocks,
           static_cast<int>(type->block_elements), static_cast<int>(type->block_elements) / e->format.block,
           {codes, scale, offset});
}

}  // namespace kv2
