// SPDX-License-Identifier: Apache-2.0
// What every vectorised coder of a page does first and last, once per target: 64 rows of bf16 become columns
// (tokens in lanes), made finite and widened to fp32, and numbers are rounded to fp16. The same bits on every
// target: conversions are written out, since the library's truncate on some of them.
#if defined(KV2_QUANT_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KV2_QUANT_COLUMNS_INL_H_
#undef KV2_QUANT_COLUMNS_INL_H_
#else
#define KV2_QUANT_COLUMNS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kv2/cache.h"

HWY_BEFORE_NAMESPACE();
namespace kv2::columns::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 64 tokens are whole vectors of either type on every target.
using Words = hn::CappedTag<uint16_t, kPageTokens>;
using Floats = hn::CappedTag<float, kPageTokens>;
using Ints = hn::RebindToSigned<Floats>;
using Vec = hn::VFromD<Floats>;

/// rows [64, d] -> columns [d, 64], bit patterns. Blocks of 8x8: three rounds of interleaving row i with row
/// i+4.
inline HWY_ATTR void transpose(const uint16_t* rows, size_t row_stride, size_t head_dim,
                               uint16_t* HWY_RESTRICT columns) {
  size_t blocked = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::Full128<uint16_t> d8;
  blocked = head_dim / 8 * 8;
  for (size_t t = 0; t < kPageTokens; t += 8) {
    for (size_t c = 0; c < blocked; c += 8) {
      const uint16_t* in = rows + t * row_stride + c;
      auto a0 = hn::LoadU(d8, in), a1 = hn::LoadU(d8, in + row_stride),
           a2 = hn::LoadU(d8, in + 2 * row_stride), a3 = hn::LoadU(d8, in + 3 * row_stride),
           a4 = hn::LoadU(d8, in + 4 * row_stride), a5 = hn::LoadU(d8, in + 5 * row_stride),
           a6 = hn::LoadU(d8, in + 6 * row_stride), a7 = hn::LoadU(d8, in + 7 * row_stride);
      for (int round = 0; round < 3; ++round) {
        const auto b0 = hn::InterleaveLower(a0, a4), b1 = hn::InterleaveUpper(d8, a0, a4);
        const auto b2 = hn::InterleaveLower(a1, a5), b3 = hn::InterleaveUpper(d8, a1, a5);
        const auto b4 = hn::InterleaveLower(a2, a6), b5 = hn::InterleaveUpper(d8, a2, a6);
        const auto b6 = hn::InterleaveLower(a3, a7), b7 = hn::InterleaveUpper(d8, a3, a7);
        a0 = b0, a1 = b1, a2 = b2, a3 = b3, a4 = b4, a5 = b5, a6 = b6, a7 = b7;
      }
      uint16_t* out = columns + c * kPageTokens + t;
      hn::StoreU(a0, d8, out);
      hn::StoreU(a1, d8, out + kPageTokens);
      hn::StoreU(a2, d8, out + 2 * kPageTokens);
      hn::StoreU(a3, d8, out + 3 * kPageTokens);
      hn::StoreU(a4, d8, out + 4 * kPageTokens);
      hn::StoreU(a5, d8, out + 5 * kPageTokens);
      hn::StoreU(a6, d8, out + 6 * kPageTokens);
      hn::StoreU(a7, d8, out + 7 * kPageTokens);
    }
  }
#endif
  for (size_t t = 0; t < kPageTokens; ++t) {
    for (size_t c = blocked; c < head_dim; ++c) columns[c * kPageTokens + t] = rows[t * row_stride + c];
  }
}

/// In place: NaN -> +0, infinity -> largest finite.
inline HWY_ATTR void make_finite(uint16_t* HWY_RESTRICT columns, size_t n) {
  const Words d;
  const hn::RebindToSigned<Words> di;
  const auto sign_bit = hn::Set(d, 0x8000), largest = hn::Set(d, 0x7f7f);
  const auto infinity = hn::Set(di, 0x7f80);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto x = hn::LoadU(d, columns + i);
    const auto magnitude = hn::AndNot(sign_bit, x);
    const auto is_nan = hn::RebindMask(d, hn::Gt(hn::BitCast(di, magnitude), infinity));
    const auto clean = hn::Or(hn::And(x, sign_bit), hn::Min(magnitude, largest));
    hn::StoreU(hn::IfThenZeroElse(is_nan, clean), d, columns + i);
  }
}

inline HWY_ATTR Vec widen(const uint16_t* bits) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> du;
  return hn::BitCast(d,
                     hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(hn::Rebind<uint16_t, Floats>(), bits))));
}

/// fp16 nearest even of |x| <= 65504: stores the bit patterns and returns their values.
inline HWY_ATTR Vec round_to_half(Vec x, uint16_t* bits) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> du;
  const auto word = hn::BitCast(du, x), sign = hn::And(word, hn::Set(du, 0x80000000u));
  const auto a = hn::Xor(word, sign);
  const auto is_small = hn::Lt(hn::BitCast(d, a), hn::Set(d, 0x1p-14f));
  const auto half = hn::Set(d, 0.5f);  // its ulp is 2^-24: the addition rounds a subnormal fp16
  const auto aligned = hn::Add(hn::BitCast(d, a), half);
  const auto odd = hn::And(hn::ShiftRight<13>(a), hn::Set(du, 1u));
  const auto rounded = hn::Add(a, hn::Add(odd, hn::Set(du, 0xfffu)));
  const auto small_bits = hn::Sub(hn::BitCast(du, aligned), hn::BitCast(du, half));
  const auto large_bits = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(du, 0x38000000u)));
  const auto small_mask = hn::RebindMask(du, is_small);
  const auto magnitude = hn::IfThenElse(small_mask, small_bits, large_bits);
  const Ints di;
  hn::StoreU(hn::DemoteTo(hn::Rebind<uint16_t, Floats>(),
                          hn::BitCast(di, hn::Or(magnitude, hn::ShiftRight<16>(sign)))),
             hn::Rebind<uint16_t, Floats>(), bits);
  const auto large_value = hn::BitCast(d, hn::AndNot(hn::Set(du, 0x1fffu), rounded));
  const auto value = hn::IfThenElse(is_small, hn::Sub(aligned, half), large_value);
  return hn::BitCast(d, hn::Or(hn::BitCast(du, value), sign));
}

}  // namespace kv2::columns::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
