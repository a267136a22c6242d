// SPDX-License-Identifier: Apache-2.0
// channel: codes per channel and group of tokens (KIVI's keys), with what was built on it:
//   norm  tokens are divided by their L2 norm over all KV heads first, and decoded values multiplied by it
//   (OScaR) kept  the tokens of smallest magnitude stay in bf16 and count as the page's mean while the others
//   are coded (OTT,
//         page by page instead of one pool for a sequence)
//   wide  the channels of largest mean magnitude have 4 bits, the others 2 (Kitty)
//
//   norms   [64] fp32                                                               with norm
//   kept    [kept] token, uint16, padded to 8 bytes; rows [kept][heads][head_dim] bf16     with kept
//   heads   codes   [head_dim] channels of 64 codes, a bit string each
//           params  [head_dim][64 / group] fp16 {scale, offset}
//           wide    [n_wide] channel, uint16, padded to 8 bytes; [n_wide] 64 high bit pairs   with wide
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/check.h"
#include "quant/bit_string.h"
#include "quant/clip.h"
#include "quant/page_codec.h"
#include "quant/round_group.h"

namespace kv2::codecs {
namespace {

constexpr int kMaxKept = 8;

constexpr size_t padded(size_t bytes) {
  return (bytes + 7) / 8 * 8;
}

/// Where everything lies.
struct Map {
  int d, heads, bits, group, n_groups, params, kept, n_wide;
  OffsetKind offset;
  bool norm;

  Map(const SideFormat& f, const KvShape& shape)
      : d(shape.head_dim),
        heads(shape.n_kv_heads),
        bits(f.bits),
        group(f.group),
        n_groups(kPageTokens / f.group),
        params(f.offset == OffsetKind::Stored ? 2 : 1),
        kept(f.kept),
        n_wide(d * f.wide / 64),
        offset(f.offset),
        norm(f.norm == TokenNorm::AllHeads) {}

  size_t norm_bytes() const { return norm ? sizeof(float) * kPageTokens : 0; }
  size_t kept_index_bytes() const { return padded(sizeof(uint16_t) * kept); }
  size_t kept_bytes() const {
    return kept_index_bytes() + sizeof(bf16) * static_cast<size_t>(kept) * heads * d;
  }
  size_t channel_bytes() const { return code_bytes(kPageTokens, bits); }
  size_t codes_bytes() const { return d * channel_bytes(); }
  size_t params_bytes() const { return sizeof(fp16) * d * n_groups * params; }
  size_t wide_index_bytes() const { return padded(sizeof(uint16_t) * n_wide); }
  size_t wide_bytes() const { return wide_index_bytes() + n_wide * code_bytes(kPageTokens, 2); }
  size_t head_bytes() const { return padded(codes_bytes() + params_bytes() + wide_bytes()); }
  size_t bytes() const { return norm_bytes() + kept_bytes() + heads * head_bytes(); }

  float* norms(std::byte* page) const { return reinterpret_cast<float*>(page); }
  uint16_t* kept_tokens(std::byte* page) const { return reinterpret_cast<uint16_t*>(page + norm_bytes()); }
  bf16* kept_rows(std::byte* page) const {
    return reinterpret_cast<bf16*>(page + norm_bytes() + kept_index_bytes());
  }
  std::byte* head(std::byte* page, int h) const {
    return page + norm_bytes() + kept_bytes() + h * head_bytes();
  }
};

/// The parts of one head.
struct HeadPage {
  uint8_t* codes;
  fp16* params;
  uint16_t* wide_channels;
  uint8_t* high;

  HeadPage(const Map& m, std::byte* head)
      : codes(reinterpret_cast<uint8_t*>(head)),
        params(reinterpret_cast<fp16*>(codes + m.codes_bytes())),
        wide_channels(reinterpret_cast<uint16_t*>(codes + m.codes_bytes() + m.params_bytes())),
        high(codes + m.codes_bytes() + m.params_bytes() + m.wide_index_bytes()) {}
};

/// Norms of all tokens over all heads: fp32 sums in order of heads and channels; 1 where there is nothing.
void measure_norms(const Map& m, const PageRows& rows, float* norms) {
  for (int t = 0; t < kPageTokens; t++) {
    float square = 0;
    for (int h = 0; h < m.heads; h++)
      for (int c = 0; c < m.d; c++) {
        const float x = to_float(finite(rows.head(h)[t * m.d + c]));
        square = square + x * x;
      }
    const float norm = std::sqrt(square);
    norms[t] = norm > 0 ? std::min(norm, 0x1.FEp127f) : 1.0f;
  }
}

/// The `kept` tokens of least Σ|x| over all heads, ascending by token.
void choose_kept(const Map& m, const PageRows& rows, uint16_t* tokens) {
  float magnitude[kPageTokens];
  for (int t = 0; t < kPageTokens; t++) {
    magnitude[t] = 0;
    for (int h = 0; h < m.heads; h++)
      for (int c = 0; c < m.d; c++)
        magnitude[t] = magnitude[t] + std::fabs(to_float(finite(rows.head(h)[t * m.d + c])));
  }
  uint16_t order[kPageTokens];
  std::iota(order, order + kPageTokens, uint16_t{0});
  std::stable_sort(order, order + kPageTokens,
                   [&](uint16_t a, uint16_t b) { return magnitude[a] < magnitude[b]; });
  std::sort(order, order + m.kept);
  std::memcpy(tokens, order, sizeof(uint16_t) * m.kept);
}

/// A channel's 64 values as they are coded.
void load_channel(const Map& m, const bf16* rows, int c, const float* norms, const uint16_t* kept, float* x) {
  for (int t = 0; t < kPageTokens; t++) {
    x[t] = to_float(finite(rows[t * m.d + c]));
    if (m.norm) x[t] = x[t] / norms[t];
  }
  if (m.kept == 0) return;
  float sum = 0;
  for (int t = 0; t < kPageTokens; t++) sum = sum + x[t];
  for (int i = 0; i < m.kept; i++) x[kept[i]] = sum / static_cast<float>(kPageTokens);
}

/// The n_wide channels of largest Σ|x|, ascending by channel.
void choose_wide(const Map& m, const bf16* rows, uint16_t* channels) {
  float magnitude[kMaxHeadDim];
  uint16_t order[kMaxHeadDim];
  for (int c = 0; c < m.d; c++) {
    magnitude[c] = 0;
    for (int t = 0; t < kPageTokens; t++)
      magnitude[c] = magnitude[c] + std::fabs(to_float(finite(rows[t * m.d + c])));
  }
  std::iota(order, order + m.d, uint16_t{0});
  std::stable_sort(order, order + m.d, [&](uint16_t a, uint16_t b) { return magnitude[a] > magnitude[b]; });
  std::sort(order, order + m.n_wide);
  std::memcpy(channels, order, sizeof(uint16_t) * m.n_wide);
}

class ChannelCodec final : public PageCodec {
 public:
  SideFormat resolve(const SideFormat& format, int head_dim) const override {
    SideFormat out = format;
    if (out.group == 0) out.group = 32;
    const int b = out.bits;
    if (b != 1 && b != 2 && b != 3 && b != 4 && b != 8)
      throw_error(ErrorCode::BadArgument, "{} bits: codes have 1, 2, 3, 4 or 8", b);
    if (head_dim > kMaxHeadDim)
      throw_error(ErrorCode::BadArgument,
                  "heads of up to {} channels can be packed, this model has head_dim {}; use bf16",
                  kMaxHeadDim, head_dim);
    if (out.group < 4 || kPageTokens % out.group != 0)
      throw_error(ErrorCode::BadArgument,
                  "group {}: a channel's groups are tokens of a page; groups that fit: 4, 8, 16, 32, 64",
                  out.group);
    if (out.kept < 0 || out.kept > kMaxKept)
      throw_error(ErrorCode::BadArgument, "{} tokens kept of a page: 0 to {} can be", out.kept, kMaxKept);
    if (out.wide < 0 || out.wide > 64 || head_dim * out.wide % 64 != 0)
      throw_error(ErrorCode::BadArgument,
                  "{} of 64 channels with 4 bits: 0 to 64, whole channels of head_dim {}", out.wide,
                  head_dim);
    if (out.wide > 0 && b != 2)
      throw_error(ErrorCode::BadArgument, "channels of 4 bits go beside others of 2, found {} bits", b);
    return out;
  }

  size_t bytes(const SideFormat& format, const KvShape& shape) const override {
    return Map(format, shape).bytes();
  }

  void encode(const Side& side, const PageRows& rows, const Coder& coder, std::byte* page) const override {
    KV2_CHECK(coder.kind == CoderKind::Round, "codes of channels are rounded");
    const Map m(side.format, side.shape);
    if (m.norm) measure_norms(m, rows, m.norms(page));
    if (m.kept > 0) {
      uint16_t* tokens = m.kept_tokens(page);
      std::memset(tokens, 0, m.kept_index_bytes());
      choose_kept(m, rows, tokens);
      bf16* to = m.kept_rows(page);
      for (int i = 0; i < m.kept; i++)
        for (int h = 0; h < m.heads; h++, to += m.d)
          std::memcpy(to, rows.head(h) + tokens[i] * m.d, sizeof(bf16) * m.d);
    }
    for (int h = 0; h < m.heads; h++) encode_head(m, rows.head(h), coder, page, h);
  }

  void decode(const Side& side, const std::byte* page, int kv_head, float* rows) const override {
    const Map m(side.format, side.shape);
    auto* bytes = const_cast<std::byte*>(page);
    const HeadPage in(m, m.head(bytes, kv_head));
    const float* norms = m.norms(bytes);
    uint8_t codes[kPageTokens], high[kPageTokens];
    const fp16* params = in.params;
    for (int c = 0, next_wide = 0; c < m.d; c++) {
      unpack_codes(in.codes + c * m.channel_bytes(), kPageTokens, m.bits, codes);
      const bool wide = next_wide < m.n_wide && in.wide_channels[next_wide] == c;
      if (wide) {
        unpack_codes(in.high + next_wide++ * code_bytes(kPageTokens, 2), kPageTokens, 2, high);
        for (int t = 0; t < kPageTokens; t++) codes[t] = static_cast<uint8_t>(codes[t] | high[t] << 2);
      }
      for (int g = 0; g < m.n_groups; g++) {
        const float s = to_float(*params++);
        const float o = m.params == 2 ? to_float(*params++) : implied_offset(m.offset, wide ? 4 : m.bits, s);
        for (int t = g * m.group; t < (g + 1) * m.group; t++)
          rows[t * m.d + c] = s * static_cast<float>(codes[t]) + o;
      }
    }
    if (m.norm)
      for (int t = 0; t < kPageTokens; t++)
        for (int c = 0; c < m.d; c++) rows[t * m.d + c] = rows[t * m.d + c] * norms[t];
    const bf16* kept = m.kept_rows(bytes) + static_cast<size_t>(kv_head) * m.d;
    for (int i = 0; i < m.kept; i++, kept += static_cast<size_t>(m.heads) * m.d)
      for (int c = 0; c < m.d; c++) rows[m.kept_tokens(bytes)[i] * m.d + c] = to_float(kept[c]);
  }

 private:
  static void encode_head(const Map& m, const bf16* rows, const Coder& coder, std::byte* page, int h) {
    const HeadPage out(m, m.head(page, h));
    std::memset(m.head(page, h), 0, m.head_bytes());  // padding has one value, too
    if (m.n_wide > 0) choose_wide(m, rows, out.wide_channels);
    float x[kPageTokens];
    uint8_t codes[kPageTokens], high[kPageTokens];
    fp16* params = out.params;
    for (int c = 0, next_wide = 0; c < m.d; c++) {
      const bool wide = next_wide < m.n_wide && out.wide_channels[next_wide] == c;
      load_channel(m, rows, c, m.norms(page), m.kept_tokens(page), x);
      for (int g = 0; g < m.n_groups; g++) {
        const int at = g * m.group;
        const GroupFit fit =
            round_group(x + at, m.group, wide ? 4 : m.bits, m.offset, coder.range, codes + at);
        *params++ = to_fp16(fit.scale);
        if (m.params == 2) *params++ = to_fp16(fit.offset);
      }
      if (wide) {
        for (int t = 0; t < kPageTokens; t++) {
          high[t] = static_cast<uint8_t>(codes[t] >> 2);
          codes[t] = static_cast<uint8_t>(codes[t] & 3);
        }
        pack_codes(high, kPageTokens, 2, out.high + next_wide++ * code_bytes(kPageTokens, 2));
      }
      pack_codes(codes, kPageTokens, m.bits, out.codes + c * m.channel_bytes());
    }
  }
};

}  // namespace

std::unique_ptr<PageCodec> make_channel() {
  return std::make_unique<ChannelCodec>();
}

}  // namespace kv2::codecs
