// SPDX-License-Identifier: Apache-2.0
// qjl: TurboQuant's unbiased variant (arXiv 2504.19874, "prod"): levels of one bit less, and of what they
// leave over, r = x − x̂, the signs of a fixed random projection (QJL). Per KV head:
//
//   codes   [64] rows of head_dim codes of bits − 1, a bit string each
//   signs   [64] rows of head_dim bits: (S·r)_j > 0
//   scales  [64] fp16 {scale of the levels, |r|}
//
// x̂ = scale·level + |r|·√(π/2)/d · Sᵀ·(±1). S has independent entries close to a standard normal: a quarter
// of (number of ones of 64 random bits − 32), from a fixed generator; entries are small integers, so the sum
// is exact.
#include <array>
#include <cmath>
#include <memory>
#include <mutex>

#include "base/check.h"
#include "quant/bit_string.h"
#include "quant/clip.h"
#include "quant/gauss/levels.h"
#include "quant/gauss/one_norm.h"
#include "quant/page_codec.h"

namespace kv2::codecs {
namespace {

/// 4·S of order d, row-major; made once per order.
const std::vector<int16_t>& projection(int d) {
  static std::array<std::vector<int16_t>, kMaxHeadDim + 1> made;
  static std::array<std::once_flag, kMaxHeadDim + 1> once;
  std::call_once(once[d], [d] {
    std::vector<int16_t>& s = made[d];
    uint64_t state = 0x243F6A8885A308D3u + static_cast<uint64_t>(d);
    for (int i = 0; i < d * d; i++) {  // splitmix64
      uint64_t z = state += 0x9E3779B97F4A7C15u;
      z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
      z = (z ^ z >> 27) * 0x94D049BB133111EBu;
      s.push_back(static_cast<int16_t>(__builtin_popcountll(z ^ z >> 31) - 32));
    }
  });
  return made[d];
}

struct Head {
  int d, bits;  // of the levels

  Head(const SideFormat& f, const KvShape& shape) : d(shape.head_dim), bits(f.bits - 1) {}
  size_t row_bytes() const { return code_bytes(d, bits); }
  size_t sign_bytes() const { return code_bytes(d, 1); }
  size_t codes_bytes() const { return kPageTokens * row_bytes(); }
  size_t signs_bytes() const { return kPageTokens * sign_bytes(); }
  size_t bytes() const { return codes_bytes() + signs_bytes() + 2 * sizeof(fp16) * kPageTokens; }
};

struct Page {
  uint8_t *codes, *signs;
  fp16* scales;

  Page(const Head& head, std::byte* page)
      : codes(reinterpret_cast<uint8_t*>(page)),
        signs(codes + head.codes_bytes()),
        scales(reinterpret_cast<fp16*>(signs + head.signs_bytes())) {}
};

constexpr float kSqrtHalfPi = 1.2533141373f;

class QjlCodec final : public PageCodec {
 public:
  SideFormat resolve(const SideFormat& format, int head_dim) const override {
    if (format.bits < 2 || format.bits > 4)
      throw_error(ErrorCode::BadArgument, "{} bits: levels and signs together have 2, 3 or 4", format.bits);
    return gauss::with_one_norm(format, head_dim);
  }

  size_t bytes(const SideFormat& format, const KvShape& shape) const override {
    return shape.n_kv_heads * Head(format, shape).bytes();
  }

  void encode(const Side& side, const PageRows& rows, const Coder& coder, std::byte* page) const override {
    KV2_CHECK(coder.kind == CoderKind::Round, "levels of a Gaussian are chosen by rounding");
    const Head head(side.format, side.shape);
    for (int h = 0; h < side.shape.n_kv_heads; h++)
      for (int t = 0; t < kPageTokens; t++)
        encode_vector(head, rows.head(h) + t * head.d, t, Page(head, page + h * head.bytes()));
  }

  void decode(const Side& side, const std::byte* page, int kv_head, float* rows) const override {
    const Head head(side.format, side.shape);
    const Page in(head, const_cast<std::byte*>(page) + kv_head * head.bytes());
    const std::vector<int16_t>& s4 = projection(head.d);
    uint8_t codes[kMaxHeadDim], signs[kMaxHeadDim];
    for (int t = 0; t < kPageTokens; t++, rows += head.d) {
      unpack_codes(in.codes + t * head.row_bytes(), head.d, head.bits, codes);
      unpack_codes(in.signs + t * head.sign_bytes(), head.d, 1, signs);
      int sum[kMaxHeadDim] = {};
      for (int j = 0; j < head.d; j++) {
        const int16_t* row = s4.data() + static_cast<size_t>(j) * head.d;
        const int sign = signs[j] ? 1 : -1;
        for (int i = 0; i < head.d; i++) sum[i] += sign * row[i];
      }
      const float scale = to_float(in.scales[2 * t]);
      const float factor = to_float(in.scales[2 * t + 1]) * (kSqrtHalfPi / 4 / static_cast<float>(head.d));
      for (int i = 0; i < head.d; i++)
        rows[i] = scale * gauss::level(head.bits, codes[i]) + factor * static_cast<float>(sum[i]);
    }
  }

 private:
  static void encode_vector(const Head& head, const bf16* row, int t, const Page& out) {
    float x[kMaxHeadDim], square = 0, left = 0;
    uint8_t codes[kMaxHeadDim], signs[kMaxHeadDim];
    for (int i = 0; i < head.d; i++) {
      x[i] = to_float(finite(row[i]));
      square = square + x[i] * x[i];
    }
    const float rms = std::sqrt(square / static_cast<float>(head.d));
    const fp16 scale = to_fp16(std::min(rms, 65504.0f));
    for (int i = 0; i < head.d; i++) {
      codes[i] = gauss::code_of(head.bits, rms > 0 ? x[i] / rms : 0.0f);
      x[i] = x[i] - to_float(scale) * gauss::level(head.bits, codes[i]);
      left = left + x[i] * x[i];
    }
    const std::vector<int16_t>& s4 = projection(head.d);
    for (int j = 0; j < head.d; j++) {
      float dot = 0;
      for (int i = 0; i < head.d; i++)
        dot = dot + static_cast<float>(s4[static_cast<size_t>(j) * head.d + i]) * x[i];
      signs[j] = dot > 0;
    }
    pack_codes(codes, head.d, head.bits, out.codes + t * head.row_bytes());
    pack_codes(signs, head.d, 1, out.signs + t * head.sign_bytes());
    out.scales[2 * t] = scale;
    out.scales[2 * t + 1] = to_fp16(std::min(std::sqrt(left), 65504.0f));
  }
};

}  // namespace

std::unique_ptr<PageCodec> make_qjl() {
  return std::make_unique<QjlCodec>();
}

}  // namespace kv2::codecs
