// SPDX-License-Identifier: Apache-2.0
// affine: codes of 1, 2, 3, 4 or 8 bits, one fp16 scale (and offset) per token and group of channels. Per KV
// head:
//
//   codes   [64] rows of head_dim codes, a bit string each
//   params  [64][groups] fp16 {scale, offset}, or {scale} where the offset follows from it
//
// By `round` (clip over the head's vector, then quant/round_group.h) or by `feedback` (quant/feedback). With
// 2 bits and an offset codes, scales and offsets are those of int2, which is the same codec in head pages.
#include <memory>

#include "base/check.h"
#include "quant/bit_string.h"
#include "quant/clip.h"
#include "quant/feedback/feedback.h"
#include "quant/page_codec.h"
#include "quant/round_group.h"

namespace kv2::codecs {
namespace {

/// Sizes of one head.
struct Head {
  int d, bits, group, n_groups;
  OffsetKind offset;

  Head(const SideFormat& f, const KvShape& shape)
      : d(shape.head_dim), bits(f.bits), group(f.group), n_groups(d / f.group), offset(f.offset) {}
  int params() const { return offset == OffsetKind::Stored ? 2 : 1; }  // of a group
  size_t row_bytes() const { return code_bytes(d, bits); }
  size_t codes_bytes() const { return kPageTokens * row_bytes(); }
  size_t bytes() const { return codes_bytes() + sizeof(fp16) * kPageTokens * n_groups * params(); }
};

struct Page {
  uint8_t* codes;
  fp16* params;

  Page(const Head& head, std::byte* page, int kv_head)
      : codes(reinterpret_cast<uint8_t*>(page) + kv_head * head.bytes()),
        params(reinterpret_cast<fp16*>(codes + head.codes_bytes())) {}
};

void round_rows(const Head& head, const bf16* rows, const Coder& coder, const Page& out) {
  float x[kMaxHeadDim];
  uint8_t codes[kMaxHeadDim];
  fp16* params = out.params;
  for (int t = 0; t < kPageTokens; t++) {
    for (int i = 0; i < head.d; i++) x[i] = to_float(finite(rows[t * head.d + i]));
    clip({x, static_cast<size_t>(head.d)}, coder.clip_index);
    for (int g = 0; g < head.n_groups; g++) {
      const int at = g * head.group;
      const GroupFit fit = round_group(x + at, head.group, head.bits, head.offset, coder.range, codes + at);
      *params++ = to_fp16(fit.scale);
      if (head.offset == OffsetKind::Stored) *params++ = to_fp16(fit.offset);
    }
    pack_codes(codes, head.d, head.bits, out.codes + t * head.row_bytes());
  }
}

void feedback_rows(const Head& head, const bf16* rows, const Coder& coder, int kv_head, const Page& out) {
  uint8_t columns[static_cast<size_t>(kMaxHeadDim) * kPageTokens];
  fp16 scale[kMaxHeadDim / 4 * kPageTokens], offset[kMaxHeadDim / 4 * kPageTokens];
  const feedback::Options options = feedback::options_of(head.d, coder, head.bits, head.offset);
  feedback::encode_rows(rows, head.d, options, coder.tables.of_head(kv_head, head.d, head.group),
                        {.codes = columns, .scale = scale, .offset = offset});
  uint8_t codes[kMaxHeadDim];
  fp16* params = out.params;
  for (int t = 0; t < kPageTokens; t++) {
    for (int i = 0; i < head.d; i++) codes[i] = columns[i * kPageTokens + t];
    pack_codes(codes, head.d, head.bits, out.codes + t * head.row_bytes());
    for (int g = 0; g < head.n_groups; g++) {
      *params++ = scale[g * kPageTokens + t];
      if (head.offset == OffsetKind::Stored) *params++ = offset[g * kPageTokens + t];
    }
  }
}

class AffineCodec final : public PageCodec {
 public:
  SideFormat resolve(const SideFormat& format, int head_dim) const override {
    SideFormat out = format;
    const int bits = format.bits;
    if (bits != 1 && bits != 2 && bits != 3 && bits != 4 && bits != 8)
      throw_error(ErrorCode::BadArgument, "{} bits: codes have 1, 2, 3, 4 or 8", bits);
    if (head_dim % 4 != 0 || head_dim > kMaxHeadDim)
      throw_error(
          ErrorCode::BadArgument,
          "heads of a multiple of 4 up to {} channels can be packed, this model has head_dim {}; use bf16",
          kMaxHeadDim, head_dim);
    if ((bits == 1 || bits == 3) && head_dim % 8 != 0)
      throw_error(ErrorCode::BadArgument,
                  "{} bits need a head_dim of a multiple of 8, this model has {}; 2, 4 and 8 fit", bits,
                  head_dim);
    if (format.offset == OffsetKind::Symmetric && bits == 1)
      throw_error(ErrorCode::BadArgument,
                  "symmetric codes have no level above zero at 1 bit; 2, 3, 4 and 8 do");
    if (out.group == 0) out.group = default_group(head_dim);
    if (out.group < 4 || out.group % 4 != 0 || head_dim % out.group != 0) {
      std::string fitting;
      for (int g = 4; g <= head_dim; g += 4)
        if (head_dim % g == 0) fitting += fmt::format("{}{}", fitting.empty() ? "" : ", ", g);
      throw_error(ErrorCode::BadArgument,
                  "group {} does not divide this model's head_dim {}; groups that do: {}", out.group,
                  head_dim, fitting);
    }
    return out;
  }

  size_t bytes(const SideFormat& format, const KvShape& shape) const override {
    return shape.n_kv_heads * Head(format, shape).bytes();
  }

  void encode(const Side& side, const PageRows& rows, const Coder& coder, std::byte* page) const override {
    const Head head(side.format, side.shape);
    for (int h = 0; h < side.shape.n_kv_heads; h++) {
      const Page out(head, page, h);
      if (coder.kind == CoderKind::Feedback)
        feedback_rows(head, rows.head(h), coder, h, out);
      else
        round_rows(head, rows.head(h), coder, out);
    }
  }

  void decode(const Side& side, const std::byte* page, int kv_head, float* rows) const override {
    const Head head(side.format, side.shape);
    const Page in(head, const_cast<std::byte*>(page), kv_head);
    uint8_t codes[kMaxHeadDim];
    const fp16* params = in.params;
    for (int t = 0; t < kPageTokens; t++, rows += head.d) {
      unpack_codes(in.codes + t * head.row_bytes(), head.d, head.bits, codes);
      for (int g = 0; g < head.n_groups; g++) {
        const float s = to_float(*params++);
        const float o = head.offset == OffsetKind::Stored ? to_float(*params++)
                                                          : implied_offset(head.offset, head.bits, s);
        for (int i = g * head.group; i < (g + 1) * head.group; i++)
          rows[i] = s * static_cast<float>(codes[i]) + o;
      }
    }
  }
};

}  // namespace

std::unique_ptr<PageCodec> make_affine() {
  return std::make_unique<AffineCodec>();
}

}  // namespace kv2::codecs
