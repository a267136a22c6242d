// SPDX-License-Identifier: Apache-2.0
// Head pages to floats, one page at a time into a worker's scratch: x̂ = scale·code + offset, one rounding.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/expand.cpp"
#include "cpu/targets.h"  // before Highway

#include <hwy/foreach_target.h>

#include "cpu/head_page.h"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kv2::cpu::HWY_NAMESPACE {

constexpr size_t kTokens = kPageTokens;
using Fp16s = hn::Rebind<hwy::float16_t, Floats>;

HWY_ATTR void ExpandFullKeys(const std::byte* head_page, int head_dim, int n_tokens, float* keys) {
  const Floats f;
  const auto* from = reinterpret_cast<const uint16_t*>(head_page);
  const size_t d = static_cast<size_t>(head_dim), n = static_cast<size_t>(n_tokens);
  if (n == kTokens) {
    for (size_t i = 0; i < d * kTokens; i += kLanes) hn::StoreU(load_bf16(from + i), f, keys + i);
    return;
  }
  // What lies beyond the last token is garbage, NaN included: selected away, never multiplied.
  for (size_t t = 0; t < kTokens; t += kLanes) {
    const auto held = hn::FirstN(f, n > t ? n - t : 0);
    for (size_t c = 0; c < d; c++)
      hn::StoreU(hn::IfThenElseZero(held, load_bf16(from + c * kTokens + t)), f, keys + c * kTokens + t);
  }
}

HWY_ATTR void ExpandFullValues(const std::byte* head_page, int head_dim, int n_tokens, float* values) {
  const size_t d = static_cast<size_t>(head_dim), n = static_cast<size_t>(n_tokens);
  const auto* from = reinterpret_cast<const uint16_t*>(head_page) + kTokens * d;
  for (size_t i = 0; i < n * d; i += kLanes) hn::StoreU(load_bf16(from + i), Floats(), values + i);
}

/// fp16 params to floats in memory.
HWY_ATTR void load_params(const fp16* from, size_t n, float* to) {
  for (size_t i = 0; i < n; i += kLanes)
    hn::StoreU(hn::PromoteTo(Floats(), hn::LoadU(Fp16s(), reinterpret_cast<const hwy::float16_t*>(from) + i)),
               Floats(), to + i);
}

/// Codes 2f..2f+1 of each byte as scale·code + offset.
template <int F>
HWY_ATTR Vec decode(hn::VFromD<Ints> bytes, Vec scale, Vec offset) {
  const Ints i;
  const auto code = hn::And(hn::ShiftRight<2 * F>(bytes), hn::Set(i, 3));
  return hn::MulAdd(scale, hn::ConvertTo(Floats(), code), offset);
}

HWY_ATTR void expand_keys(const uint8_t* codes, const fp16* params, const Int2Layout& layout, float* k) {
  const Floats f;
  const size_t group = static_cast<size_t>(layout.group);
  alignas(64) float scale[kTokens], offset[kTokens];
  for (int g = 0; g < layout.n_groups(); g++) {
    load_params(params + g * kTokens, kTokens, scale);
    load_params(params + (layout.n_groups() + g) * kTokens, kTokens, offset);
    for (size_t i = 0; i < 16; i += kLanes) {
      const auto s0 = hn::Load(f, scale + i), s1 = hn::Load(f, scale + 16 + i),
                 s2 = hn::Load(f, scale + 32 + i), s3 = hn::Load(f, scale + 48 + i),
                 o0 = hn::Load(f, offset + i), o1 = hn::Load(f, offset + 16 + i),
                 o2 = hn::Load(f, offset + 32 + i), o3 = hn::Load(f, offset + 48 + i);
      for (size_t c = g * group; c < (g + 1) * group; c++) {
        const auto bytes = hn::PromoteTo(Ints(), hn::LoadU(Bytes(), codes + c * 16 + i));
        float* out = k + c * kTokens + i;
        hn::StoreU(decode<0>(bytes, s0, o0), f, out);
        hn::StoreU(decode<1>(bytes, s1, o1), f, out + 16);
        hn::StoreU(decode<2>(bytes, s2, o2), f, out + 32);
        hn::StoreU(decode<3>(bytes, s3, o3), f, out + 48);
      }
    }
  }
}

HWY_ATTR void expand_values(const uint8_t* codes, const fp16* params, const Int2Layout& layout, float* v) {
  const Floats f;
  const size_t d = static_cast<size_t>(layout.head_dim), group = static_cast<size_t>(layout.group);
  alignas(64) float scale[kTokens], offset[kTokens];
  for (int g = 0; g < layout.n_groups(); g++) {
    load_params(params + g * kTokens, kTokens, scale);
    load_params(params + (layout.n_groups() + g) * kTokens, kTokens, offset);
    const size_t first = g * group, last = first + group, whole = first + group / kLanes * kLanes;
    for (size_t r = 0; r < 16; r++) {
      const float *s = scale + 4 * r, *o = offset + 4 * r;
      const auto s0 = hn::Set(f, s[0]), s1 = hn::Set(f, s[1]), s2 = hn::Set(f, s[2]), s3 = hn::Set(f, s[3]);
      const auto o0 = hn::Set(f, o[0]), o1 = hn::Set(f, o[1]), o2 = hn::Set(f, o[2]), o3 = hn::Set(f, o[3]);
      const uint8_t* row = codes + r * d;
      float* out = v + 4 * r * d;
      for (size_t c = first; c < whole; c += kLanes) {
        const auto bytes = hn::PromoteTo(Ints(), hn::LoadU(Bytes(), row + c));
        hn::StoreU(decode<0>(bytes, s0, o0), f, out + c);
        hn::StoreU(decode<1>(bytes, s1, o1), f, out + d + c);
        hn::StoreU(decode<2>(bytes, s2, o2), f, out + 2 * d + c);
        hn::StoreU(decode<3>(bytes, s3, o3), f, out + 3 * d + c);
      }
      for (size_t c = whole; c < last; c++)  // no whole vector; scale·code is exact
        for (size_t j = 0; j < 4; j++)
          out[j * d + c] = s[j] * static_cast<float>(row[c] >> (2 * j) & 3) + o[j];
    }
  }
}

HWY_ATTR void ExpandPackedKeys(const std::byte* head_page, const Int2Layout& layout, float* keys) {
  expand_keys(reinterpret_cast<const uint8_t*>(head_page + layout.k_codes()),
              reinterpret_cast<const fp16*>(head_page + layout.k_params()), layout, keys);
}

HWY_ATTR void ExpandPackedValues(const std::byte* head_page, const Int2Layout& layout, float* values) {
  expand_values(reinterpret_cast<const uint8_t*>(head_page + layout.v_codes()),
                reinterpret_cast<const fp16*>(head_page + layout.v_params()), layout, values);
}

}  // namespace kv2::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv2::cpu {

HWY_EXPORT(ExpandFullKeys);
HWY_EXPORT(ExpandFullValues);
HWY_EXPORT(ExpandPackedKeys);
HWY_EXPORT(ExpandPackedValues);

void expand_full_keys(const std::byte* head_page, int head_dim, int n_tokens, float* keys) {
  HWY_DYNAMIC_DISPATCH(ExpandFullKeys)(head_page, head_dim, n_tokens, keys);
}
void expand_full_values(const std::byte* head_page, int head_dim, int n_tokens, float* values) {
  HWY_DYNAMIC_DISPATCH(ExpandFullValues)(head_page, head_dim, n_tokens, values);
}
void expand_packed_keys(const std::byte* head_page, const Int2Layout& layout, float* keys) {
  HWY_DYNAMIC_DISPATCH(ExpandPackedKeys)(head_page, layout, keys);
}
void expand_packed_values(const std::byte* head_page, const Int2Layout& layout, float* values) {
  HWY_DYNAMIC_DISPATCH(ExpandPackedValues)(head_page, layout, values);
}

}  // namespace kv2::cpu
#endif
