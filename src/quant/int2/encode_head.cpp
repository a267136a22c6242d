// SPDX-License-Identifier: Apache-2.0
#include "quant/int2/encode_head.h"

#include "base/check.h"
#include "quant/bit_string.h"
#include "quant/clip.h"
#include "quant/feedback/feedback.h"
#include "quant/round_group.h"

namespace kv2::int2 {
namespace {

using RowsFunction = void (*)(const bf16*, size_t, const feedback::Options&, const FeedbackTables&,
                              const feedback::Columns&);

/// Codes [d][64] and pairs [groups][64] -> canonical [64][d/4] and [64][groups]{scale, offset}.
void pack(const feedback::Columns& in, int head_dim, int n_groups, uint8_t* codes, fp16* params) {
  const int row_bytes = head_dim / 4;
  for (int i = 0; i < row_bytes; ++i) {
    const uint8_t* c = in.codes + static_cast<size_t>(4 * i) * kPageTokens;
    uint8_t bytes[kPageTokens];
    for (int t = 0; t < kPageTokens; ++t)
      bytes[t] = static_cast<uint8_t>(c[t] | c[kPageTokens + t] << 2 | c[2 * kPageTokens + t] << 4 |
                                      c[3 * kPageTokens + t] << 6);
    for (int t = 0; t < kPageTokens; ++t) codes[static_cast<size_t>(t) * row_bytes + i] = bytes[t];
  }
  for (int t = 0; t < kPageTokens; ++t) {
    for (int g = 0; g < n_groups; ++g) {
      fp16* pair = params + (static_cast<size_t>(t) * n_groups + g) * 2;
      pair[0] = in.scale[g * kPageTokens + t];
      pair[1] = in.offset[g * kPageTokens + t];
    }
  }
}

void encode_feedback(RowsFunction encode, const bf16* rows, size_t row_stride, int head_dim,
                     const Coder& coder, int kv_head, uint8_t* codes, fp16* params) {
  KV2_CHECK(coder.tables.f && coder.tables.weight && coder.tables.ones, "feedback without its tables");
  uint8_t columns[static_cast<size_t>(kMaxHeadDim) * kPageTokens];  // 32 KiB
  fp16 scale[kMaxHeadDim / 4 * kPageTokens], offset[kMaxHeadDim / 4 * kPageTokens];
  const feedback::Columns out{.codes = columns, .scale = scale, .offset = offset};
  const feedback::Options options = feedback::options_of(head_dim, coder, 2, OffsetKind::Stored);
  encode(rows, row_stride, options, coder.tables.of_head(kv_head, head_dim, coder.group), out);
  pack(out, head_dim, options.n_groups(), codes, params);
}

}  // namespace

namespace {

/// Rounded codes by another rule than the smallest and largest value: the ones of the codec affine, scalar.
void encode_by_rule(const bf16* rows, size_t row_stride, int head_dim, const Coder& coder, uint8_t* codes,
                    fp16* params) {
  check_shape(head_dim, coder);
  float x[kMaxHeadDim];
  uint8_t row[kMaxHeadDim];
  for (int t = 0; t < kPageTokens; ++t) {
    for (int i = 0; i < head_dim; ++i)
      x[i] = to_float(finite(rows[static_cast<size_t>(t) * row_stride + static_cast<size_t>(i)]));
    clip({x, static_cast<size_t>(head_dim)}, coder.clip_index);
    for (int i = 0; i < head_dim; i += coder.group) {
      const GroupFit fit = round_group(x + i, coder.group, 2, OffsetKind::Stored, coder.range, row + i);
      *params++ = to_fp16(fit.scale);
      *params++ = to_fp16(fit.offset);
    }
    pack_codes(row, static_cast<size_t>(head_dim), 2, codes + static_cast<size_t>(t) * (head_dim / 4));
  }
}

}  // namespace

void encode_head(const bf16* rows, size_t row_stride, int head_dim, const Coder& coder, int kv_head,
                 uint8_t* codes, fp16* params) {
  if (coder.kind == CoderKind::Round && coder.range != RangeRule::MinMax)
    return encode_by_rule(rows, row_stride, head_dim, coder, codes, params);
  if (coder.kind == CoderKind::Round) return encode_rows(rows, row_stride, head_dim, coder, codes, params);
  check_shape(head_dim, coder);
  encode_feedback(feedback::encode_rows, rows, row_stride, head_dim, coder, kv_head, codes, params);
}

void encode_head_reference(const bf16* rows, size_t row_stride, int head_dim, const Coder& coder, int kv_head,
                           uint8_t* codes, fp16* params) {
  if (coder.kind == CoderKind::Round && coder.range != RangeRule::MinMax)
    return encode_by_rule(rows, row_stride, head_dim, coder, codes, params);
  if (coder.kind == CoderKind::Round)
    return encode_rows_reference(rows, row_stride, head_dim, coder, codes, params);
  check_shape(head_dim, coder);
  encode_feedback(feedback::encode_rows_reference, rows, row_stride, head_dim, coder, kv_head, codes, params);
}

}  // namespace kv2::int2
