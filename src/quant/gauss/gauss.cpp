// SPDX-License-Identifier: Apache-2.0
// gauss: TurboQuant's codes (arXiv 2504.19874). After a random rotation the channels of a vector look like
// draws from a Gaussian, so one fixed table of levels serves all of them and a vector stores one scale beside
// its codes:
//
//   codes   [64] rows of head_dim codes of 1 to 4 bits, a bit string each
//   scales  [64] fp16
//
// x̂ = scale·level[code]. With NormRule::Plain the scale is the vector's root mean square, with Corrected it
// is such that x̂ has the vector's norm ("norm correction" of later implementations): |x| / |levels|. Per KV
// head.
#include <cmath>
#include <memory>

#include "base/check.h"
#include "quant/bit_string.h"
#include "quant/clip.h"
#include "quant/gauss/levels.h"
#include "quant/gauss/one_norm.h"
#include "quant/page_codec.h"

namespace kv2::codecs {
namespace {

struct Head {
  int d, bits;

  Head(const SideFormat& f, const KvShape& shape) : d(shape.head_dim), bits(f.bits) {}
  size_t row_bytes() const { return code_bytes(d, bits); }
  size_t codes_bytes() const { return kPageTokens * row_bytes(); }
  size_t bytes() const { return codes_bytes() + sizeof(fp16) * kPageTokens; }
};

class GaussCodec final : public PageCodec {
 public:
  SideFormat resolve(const SideFormat& format, int head_dim) const override {
    if (format.bits < 1 || format.bits > gauss::kMaxBits)
      throw_error(ErrorCode::BadArgument, "{} bits: levels for a Gaussian have 1, 2, 3 or 4", format.bits);
    return gauss::with_one_norm(format, head_dim);
  }

  size_t bytes(const SideFormat& format, const KvShape& shape) const override {
    return shape.n_kv_heads * Head(format, shape).bytes();
  }

  void encode(const Side& side, const PageRows& rows, const Coder& coder, std::byte* page) const override {
    KV2_CHECK(coder.kind == CoderKind::Round, "levels of a Gaussian are chosen by rounding");
    const Head head(side.format, side.shape);
    for (int h = 0; h < side.shape.n_kv_heads; h++, page += head.bytes())
      for (int t = 0; t < kPageTokens; t++) encode_vector(head, rows.head(h) + t * head.d, coder, t, page);
  }

  void decode(const Side& side, const std::byte* page, int kv_head, float* rows) const override {
    const Head head(side.format, side.shape);
    page += kv_head * head.bytes();
    const auto* scales = reinterpret_cast<const fp16*>(page + head.codes_bytes());
    uint8_t codes[kMaxHeadDim];
    float levels[1 << gauss::kMaxBits];
    for (int c = 0; c < 1 << head.bits; c++) levels[c] = gauss::level(head.bits, c);
    for (int t = 0; t < kPageTokens; t++, rows += head.d) {
      unpack_codes(reinterpret_cast<const uint8_t*>(page) + t * head.row_bytes(), head.d, head.bits, codes);
      const float s = to_float(scales[t]);
      for (int i = 0; i < head.d; i++) rows[i] = s * levels[codes[i]];
    }
  }

 private:
  static void encode_vector(const Head& head, const bf16* row, const Coder& coder, int t, std::byte* page) {
    float x[kMaxHeadDim], square = 0, levels = 0;
    uint8_t codes[kMaxHeadDim];
    for (int i = 0; i < head.d; i++) {
      x[i] = to_float(finite(row[i]));
      square = square + x[i] * x[i];
    }
    const float rms = std::sqrt(square / static_cast<float>(head.d));
    for (int i = 0; i < head.d; i++) {
      codes[i] = gauss::code_of(head.bits, rms > 0 ? x[i] / rms : 0.0f);
      const float l = gauss::level(head.bits, codes[i]);
      levels = levels + l * l;
    }
    const float scale = coder.norm_rule == NormRule::Plain ? rms : std::sqrt(square / levels);
    pack_codes(codes, head.d, head.bits, reinterpret_cast<uint8_t*>(page) + t * head.row_bytes());
    reinterpret_cast<fp16*>(page + head.codes_bytes())[t] = to_fp16(std::min(scale, 65504.0f));
  }
};

}  // namespace

std::unique_ptr<PageCodec> make_gauss() {
  return std::make_unique<GaussCodec>();
}

}  // namespace kv2::codecs
