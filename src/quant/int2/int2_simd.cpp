// SPDX-License-Identifier: Apache-2.0
// encode_rows: the Highway twin of the specification in int2.cpp, tokens in lanes, bit-identical on every
// target. Every step is the same single fp32 operation as there; the order statistic is found in integers
// (bf16 magnitudes are 15-bit numbers in the order of their values). It does not transpose back through
// vectors: bytes are scattered, 2,048 of them at head_dim 128.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/int2/int2_simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/columns-inl.h"
#include "quant/int2/int2.h"

HWY_BEFORE_NAMESPACE();
namespace kv2::int2::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using namespace kv2::columns::HWY_NAMESPACE;

/// Step 2: thresholds [64] as bits, the largest t with fewer than index+1 magnitudes below it, bit by bit
/// from the top.
void clip_thresholds(const uint16_t* HWY_RESTRICT columns, size_t head_dim, int index, uint16_t* thresholds) {
  const Words d;
  const hn::RebindToSigned<Words> di;
  const auto magnitude_bits = hn::Set(di, 0x7fff), allowed = hn::Set(di, static_cast<int16_t>(index));
  for (size_t t = 0; t < kPageTokens; t += hn::Lanes(d)) {
    auto threshold = hn::Zero(di);
    for (int bit = 14; bit >= 0; --bit) {
      const auto candidate = hn::Or(threshold, hn::Set(di, static_cast<int16_t>(1 << bit)));
      auto n_below = hn::Zero(di);
      for (size_t c = 0; c < head_dim; ++c) {
        const auto x = hn::BitCast(di, hn::LoadU(d, columns + c * kPageTokens + t));
        n_below = hn::Sub(n_below, hn::VecFromMask(di, hn::Lt(hn::And(x, magnitude_bits), candidate)));
      }
      threshold = hn::IfThenElse(hn::Gt(n_below, allowed), threshold, candidate);
    }
    hn::StoreU(hn::BitCast(d, threshold), d, thresholds + t);
  }
}

struct Group {
  const uint16_t* columns;     // [group, 64] finite bf16
  const uint16_t* thresholds;  // [64], or nullptr: no clip
  size_t n_channels;
  uint8_t* codes;  // byte of the group's first channels, token 0
  size_t code_stride;
  fp16* params;  // {scale, offset} of token 0
  size_t param_stride;
};

/// Steps 2 to 5 of one group for the vector of tokens that starts at `token`.
void encode_group(const Group& g, size_t token) {
  const Floats d;
  const Ints di;
  const size_t lanes = hn::Lanes(d);
  const auto bound = g.thresholds ? widen(g.thresholds + token) : hn::Set(d, 0x1.FEp127f);
  const auto clip = [&](Vec x) { return hn::Min(hn::Max(x, hn::Neg(bound)), bound); };
  auto mn = widen(g.columns + token), mx = mn;
  for (size_t c = 1; c < g.n_channels; ++c) {
    const auto x = widen(g.columns + c * kPageTokens + token);
    mn = hn::Min(mn, x);
    mx = hn::Max(mx, x);
  }
  mn = hn::Add(clip(mn), hn::Zero(d));  // clamping keeps order: the extremes of the clipped values
  mx = clip(mx);
  const auto is_constant = hn::RebindMask(di, hn::Eq(mn, mx));
  HWY_ALIGN uint16_t scale_bits[kPageTokens], offset_bits[kPageTokens];
  const auto range = hn::Div(hn::Sub(mx, mn), hn::Set(d, 3.0f));
  const auto scale =
      round_to_half(hn::Min(hn::Max(range, hn::Set(d, 0x1p-24f)), hn::Set(d, 65504.0f)), scale_bits);
  const auto offset =
      round_to_half(hn::Min(hn::Max(mn, hn::Set(d, -65504.0f)), hn::Set(d, 65504.0f)), offset_bits);
  for (size_t t = 0; t < lanes; ++t) {
    fp16* pair = g.params + (token + t) * g.param_stride;
    pair[0].bits = scale_bits[t];
    pair[1].bits = offset_bits[t];
  }
  const auto code_of = [&](size_t c) {
    const auto x = clip(widen(g.columns + c * kPageTokens + token));
    const auto y = hn::Add(hn::Div(hn::Sub(x, offset), scale), hn::Set(d, 0.5f));
    // floor and clamp commute here; what is left is not negative, so truncation is floor.
    return hn::ConvertTo(di, hn::Min(hn::Max(y, hn::Zero(d)), hn::Set(d, 3.0f)));
  };
  HWY_ALIGN uint8_t bytes[kPageTokens];
  const hn::Rebind<uint8_t, Floats> d8;
  for (size_t c = 0; c < g.n_channels; c += 4) {
    const auto low = hn::Or(code_of(c), hn::ShiftLeft<2>(code_of(c + 1)));
    const auto high = hn::Or(hn::ShiftLeft<4>(code_of(c + 2)), hn::ShiftLeft<6>(code_of(c + 3)));
    hn::StoreU(hn::DemoteTo(d8, hn::IfThenZeroElse(is_constant, hn::Or(low, high))), d8, bytes);
    for (size_t t = 0; t < lanes; ++t) g.codes[(token + t) * g.code_stride + c / 4] = bytes[t];
  }
}

void EncodeRows(const bf16* rows, size_t row_stride, int head_dim, const Coder& coder, uint8_t* codes,
                fp16* params) {
  HWY_ALIGN uint16_t columns[static_cast<size_t>(kMaxHeadDim) * kPageTokens];  // 64 KiB
  HWY_ALIGN uint16_t thresholds[kPageTokens];
  const size_t d = static_cast<size_t>(head_dim), group = static_cast<size_t>(coder.group);
  transpose(reinterpret_cast<const uint16_t*>(rows), row_stride, d, columns);
  make_finite(columns, d * kPageTokens);
  const bool clips = coder.clip_index >= 0;
  if (clips) clip_thresholds(columns, d, coder.clip_index, thresholds);
  for (size_t i = 0; i < d / group; ++i) {
    const Group g{.columns = columns + i * group * kPageTokens,
                  .thresholds = clips ? thresholds : nullptr,
                  .n_channels = group,
                  .codes = codes + i * group / 4,
                  .code_stride = d / 4,
                  .params = params + 2 * i,
                  .param_stride = 2 * (d / group)};
    for (size_t token = 0; token < kPageTokens; token += hn::Lanes(Floats())) encode_group(g, token);
  }
}

}  // namespace kv2::int2::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv2::int2 {

HWY_EXPORT(EncodeRows);

void encode_rows(const bf16* rows, size_t row_stride, int head_dim, const Coder& coder, uint8_t* codes,
                 fp16* params) {
  check_shape(head_dim, coder);
  HWY_DYNAMIC_DISPATCH(EncodeRows)(rows, row_stride, head_dim, coder, codes, params);
}

}  // namespace kv2::int2
#endif  // HWY_ONCE
