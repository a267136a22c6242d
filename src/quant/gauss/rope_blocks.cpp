// SPDX-License-Identifier: Apache-2.0
// rope_blocks: levels of a Gaussian with bits per channel (in the manner of Block-GTQ, arXiv 2606.24033).
// Keys after RoPE are not rotated: each channel keeps the energy that calibration saw (the two channels of a
// RoPE pair have nearly the same, positions mix them), and those of high energy have more bits. Tables per KV
// head: gauss/allocate.h.
//
//   codes   [head_dim] channels of 64 codes of their own bits, a bit string each
//   scales  [64] fp16, one per token:    x̂_c = scale·level_c[code]·spread_c, with the norm of x
#include <algorithm>
#include <cmath>
#include <memory>

#include "base/check.h"
#include "quant/bit_string.h"
#include "quant/clip.h"
#include "quant/gauss/levels.h"
#include "quant/page_codec.h"

namespace kv2::codecs {
namespace {

struct Head {
  int d;
  const float *bits, *spread;  // [d]

  Head(const Side& side, int kv_head) : d(side.shape.head_dim) {
    KV2_CHECK(side.tables.size() == static_cast<size_t>(side.shape.n_kv_heads) * 2 * d,
              "{} numbers of calibration for {} heads of {}", side.tables.size(), side.shape.n_kv_heads, d);
    bits = side.tables.data() + static_cast<size_t>(kv_head) * 2 * d;
    spread = bits + d;
  }
  int bits_of(int c) const { return static_cast<int>(bits[c]); }
};

size_t codes_bytes(int d, int bits_each) {
  return code_bytes(kPageTokens, bits_each) * static_cast<size_t>(d);
}
size_t head_bytes(int d, int bits_each) {
  return codes_bytes(d, bits_each) + sizeof(fp16) * kPageTokens;
}

class RopeBlocksCodec final : public PageCodec {
 public:
  SideFormat resolve(const SideFormat& format, int head_dim) const override {
    SideFormat out =
        page_codec(CodecId::Gauss)
            .resolve({.codec = CodecId::Gauss, .bits = format.bits, .group = format.group}, head_dim);
    out.codec = CodecId::RopeBlocks;
    return out;
  }
  size_t bytes(const SideFormat& format, const KvShape& shape) const override {
    return shape.n_kv_heads * head_bytes(shape.head_dim, format.bits);
  }

  void encode(const Side& side, const PageRows& rows, const Coder& coder, std::byte* page) const override {
    KV2_CHECK(coder.kind == CoderKind::Round, "levels of a Gaussian are chosen by rounding");
    for (int h = 0; h < side.shape.n_kv_heads; h++, page += head_bytes(side.shape.head_dim, side.format.bits))
      encode_head(Head(side, h), rows.head(h), side.format.bits, page);
  }

  void decode(const Side& side, const std::byte* page, int kv_head, float* rows) const override {
    const Head head(side, kv_head);
    page += kv_head * head_bytes(head.d, side.format.bits);
    const auto* scales = reinterpret_cast<const fp16*>(page + codes_bytes(head.d, side.format.bits));
    const auto* packed = reinterpret_cast<const uint8_t*>(page);
    uint8_t codes[kPageTokens];
    for (int c = 0; c < head.d; c++) {
      const int bits = head.bits_of(c);
      unpack_codes(packed, kPageTokens, bits, codes);
      packed += code_bytes(kPageTokens, bits);
      for (int t = 0; t < kPageTokens; t++)
        rows[t * head.d + c] = to_float(scales[t]) * (gauss::level(bits, codes[t]) * head.spread[c]);
    }
  }

 private:
  static void encode_head(const Head& head, const bf16* rows, int bits_each, std::byte* page) {
    const size_t n = static_cast<size_t>(head.d);
    std::vector<uint8_t> codes(n * kPageTokens);
    auto* scales = reinterpret_cast<fp16*>(page + codes_bytes(head.d, bits_each));
    for (int t = 0; t < kPageTokens; t++) {
      float x[kMaxHeadDim], square = 0, whitened = 0, levels = 0;
      for (int c = 0; c < head.d; c++) {
        x[c] = to_float(finite(rows[t * head.d + c]));
        const float z = x[c] / head.spread[c];
        square = square + x[c] * x[c];
        whitened = whitened + z * z;
      }
      const float rms = std::sqrt(whitened / static_cast<float>(head.d));
      for (int c = 0; c < head.d; c++) {
        const uint8_t code = gauss::code_of(head.bits_of(c), rms > 0 ? x[c] / head.spread[c] / rms : 0.0f);
        codes[c * kPageTokens + t] = code;
        const float l = gauss::level(head.bits_of(c), code) * head.spread[c];
        levels = levels + l * l;
      }
      scales[t] = to_fp16(std::min(std::sqrt(square / levels), 65504.0f));
    }
    auto* packed = reinterpret_cast<uint8_t*>(page);
    for (int c = 0; c < head.d; c++) {
      pack_codes(codes.data() + c * kPageTokens, kPageTokens, head.bits_of(c), packed);
      packed += code_bytes(kPageTokens, head.bits_of(c));
    }
  }
};

}  // namespace

std::unique_ptr<PageCodec> make_rope_blocks() {
  return std::make_unique<RopeBlocksCodec>();
}

}  // namespace kv2::codecs
