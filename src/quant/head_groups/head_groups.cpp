// SPDX-License-Identifier: Apache-2.0
// head_groups: RotateKV's codes (arXiv 2501.16383). The KV heads of a token go in groups of up to four
// through one Hadamard matrix, so that an outlier channel of one head is spread over all of them, then per
// token in groups of channels; the range of a group is narrowed to 0.8 of itself at 1 and 2 bits, and zero is
// a level. After RoPE here, where the paper rotates and reorders channels before it. Per group of heads:
//
//   codes   [64] rows of n·head_dim codes, a bit string each
//   params  [64][groups] fp16 {scale, offset}
#include <algorithm>
#include <array>
#include <memory>
#include <mutex>

#include "base/check.h"
#include "quant/bit_string.h"
#include "quant/clip.h"
#include "quant/page_codec.h"
#include "quant/rotation.h"
#include "quant/round_group.h"

namespace kv2::codecs {
namespace {

constexpr int kMostHeads = 4, kMaxWidth = kMostHeads * kMaxHeadDim;
constexpr float kNarrow = 0.8f;

/// H of an order, symmetric or not, row-major, and its transpose; made once.
struct Matrices {
  std::vector<float> rows, columns;
};
const Matrices& hadamard_of(int order) {
  static std::array<Matrices, kMaxWidth + 1> made;
  static std::array<std::once_flag, kMaxWidth + 1> once;
  Matrices& m = made[static_cast<size_t>(order)];
  std::call_once(once[static_cast<size_t>(order)], [&m, order] {
    const auto n = static_cast<size_t>(order);
    for (const double x : hadamard(order)) m.rows.push_back(static_cast<float>(x));
    for (size_t i = 0; i < n * n; i++) m.columns.push_back(m.rows[i % n * n + i / n]);
  });
  return m;
}

/// Heads that are rotated together: as many as divide them, up to four, and have a Hadamard matrix.
int heads_together(const KvShape& shape) {
  for (int n = kMostHeads; n > 1; n--)
    if (shape.n_kv_heads % n == 0 && has_hadamard(n * shape.head_dim)) return n;
  return 1;
}

struct Map {
  int d, together, width, bits, group, n_groups;

  Map(const SideFormat& f, const KvShape& shape)
      : d(shape.head_dim),
        together(heads_together(shape)),
        width(together * d),
        bits(f.bits),
        group(f.group),
        n_groups(width / f.group) {}
  size_t row_bytes() const { return code_bytes(static_cast<size_t>(width), bits); }
  size_t codes_bytes() const { return kPageTokens * row_bytes(); }
  size_t bytes() const { return codes_bytes() + 2 * sizeof(fp16) * kPageTokens * n_groups; }
};

class HeadGroupsCodec final : public PageCodec {
 public:
  SideFormat resolve(const SideFormat& format, int head_dim) const override {
    SideFormat out =
        page_codec(CodecId::Affine)
            .resolve({.codec = CodecId::Affine, .bits = format.bits, .group = format.group}, head_dim);
    out.codec = CodecId::HeadGroups;
    if (!has_hadamard(head_dim))
      throw_error(ErrorCode::BadArgument,
                  "no Hadamard matrix of order {} (this model's head_dim); orders: {}", head_dim,
                  hadamard_orders());
    return out;
  }

  size_t bytes(const SideFormat& format, const KvShape& shape) const override {
    const Map m(format, shape);
    return static_cast<size_t>(shape.n_kv_heads / m.together) * m.bytes();
  }

  void encode(const Side& side, const PageRows& rows, const Coder& coder, std::byte* page) const override {
    KV2_CHECK(coder.kind == CoderKind::Round, "codes of groups of heads are rounded");
    const Map m(side.format, side.shape);
    for (int first = 0; first < side.shape.n_kv_heads; first += m.together, page += m.bytes())
      for (int t = 0; t < kPageTokens; t++) encode_token(m, rows, first, t, page);
  }

  void decode(const Side& side, const std::byte* page, int kv_head, float* rows) const override {
    const Map m(side.format, side.shape);
    page += static_cast<size_t>(kv_head / m.together) * m.bytes();
    const auto* params = reinterpret_cast<const fp16*>(page + m.codes_bytes());
    // This head's channels of a row of the transpose follow each other: sums in index order, side by side.
    const float* h = hadamard_of(m.width).columns.data() + static_cast<size_t>(kv_head % m.together) * m.d;
    uint8_t codes[kMaxWidth];
    float y[kMaxWidth];
    for (int t = 0; t < kPageTokens; t++, rows += m.d) {
      unpack_codes(reinterpret_cast<const uint8_t*>(page) + t * m.row_bytes(), static_cast<size_t>(m.width),
                   m.bits, codes);
      for (int g = 0; g < m.n_groups; g++) {
        const float s = to_float(*params++), o = to_float(*params++);
        for (int i = g * m.group; i < (g + 1) * m.group; i++) y[i] = s * static_cast<float>(codes[i]) + o;
      }
      std::fill_n(rows, m.d, 0.0f);
      for (int i = 0; i < m.width; i++)
        for (int c = 0; c < m.d; c++) rows[c] = rows[c] + y[i] * h[static_cast<size_t>(i) * m.width + c];
    }
  }

 private:
  static void encode_token(const Map& m, const PageRows& rows, int first_head, int t, std::byte* page) {
    const float* h = hadamard_of(m.width).rows.data();
    float y[kMaxWidth] = {};
    for (int i = 0; i < m.width; i++) {
      const bf16 x = rows.head(first_head + i / m.d)[t * m.d + i % m.d];
      const float value = to_float(finite(x));
      for (int j = 0; j < m.width; j++) y[j] = y[j] + value * h[static_cast<size_t>(i) * m.width + j];
    }
    uint8_t codes[kMaxWidth];
    fp16* params = reinterpret_cast<fp16*>(page + m.codes_bytes()) + 2 * static_cast<size_t>(t) * m.n_groups;
    for (int g = 0; g < m.n_groups; g++) {
      float* x = y + g * m.group;
      for (int i = 0; i < m.group; i++)
        x[i] = std::clamp(x[i], -0x1.FEp127f, 0x1.FEp127f);  // sums may overflow
      if (m.bits <= 2) {
        const auto [low, high] = std::minmax_element(x, x + m.group);
        const float narrow_low = kNarrow * *low, narrow_high = kNarrow * *high;
        if (narrow_low < narrow_high)
          for (int i = 0; i < m.group; i++) x[i] = std::clamp(x[i], narrow_low, narrow_high);
      }
      const GroupFit fit =
          round_group(x, m.group, m.bits, OffsetKind::Stored, RangeRule::IntegerZero, codes + g * m.group);
      params[2 * g] = to_fp16(fit.scale);
      params[2 * g + 1] = to_fp16(fit.offset);
    }
    pack_codes(codes, static_cast<size_t>(m.width), m.bits,
               reinterpret_cast<uint8_t*>(page) + t * m.row_bytes());
  }
};

}  // namespace

std::unique_ptr<PageCodec> make_head_groups() {
  return std::make_unique<HeadGroupsCodec>();
}

}  // namespace kv2::codecs
