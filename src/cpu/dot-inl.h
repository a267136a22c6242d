// SPDX-License-Identifier: Apache-2.0
// The one inner product that Highway 1.0.3 lacks: four unsigned bytes times four signed bytes, added to an
// int32. It is exact on every target, so all targets give the same integers. Include inside a target's
// namespace; where KV2_VNNI is 1 the functions around it must be compiled for AVX512-VNNI (see vnni.h). The
// NEON body has run under qemu alone (scripts/test_neon).

using Ints8 = hn::Repartition<uint8_t, Ints>;
using CodeBytes = hn::VFromD<Ints8>;
using IntVec = hn::VFromD<Ints>;

/// acc[i] + Σ codes[4i + e]·x[4i + e], e < 4; every code at most 127, so that two products fit 16 bits.
HWY_INLINE HWY_ATTR IntVec dot4(IntVec acc, CodeBytes codes, IntVec x) {
#if KV2_VNNI
  return IntVec{_mm512_dpbusd_epi32(acc.raw, codes.raw, x.raw)};
#elif HWY_TARGET == HWY_AVX3
  const __m512i pairs = _mm512_maddubs_epi16(codes.raw, x.raw);
  return IntVec{_mm512_add_epi32(acc.raw, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
#elif HWY_TARGET == HWY_AVX2
  const __m256i pairs = _mm256_maddubs_epi16(codes.raw, x.raw);
  return IntVec{_mm256_add_epi32(acc.raw, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
#elif HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64
  const int8x16_t a = vreinterpretq_s8_u8(codes.raw), b = vreinterpretq_s8_s32(x.raw);
  const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
  return IntVec{vpadalq_s16(acc.raw, vpaddq_s16(low, high))};
#elif HWY_TARGET == HWY_EMU128  // what Highway compiles as the baseline with g++ from 12.3 on
  for (int i = 0; i < 4; i++)
    for (int e = 0; e < 4; e++) {
      const auto byte = static_cast<int8_t>(static_cast<uint32_t>(x.raw[i]) >> (8 * e));
      acc.raw[i] += static_cast<int32_t>(codes.raw[4 * i + e]) * byte;
    }
  return acc;
#else
#error "a byte dot product for this target"
#endif
}

/// The same four signed bytes in every lane.
HWY_INLINE HWY_ATTR IntVec broadcast4(const int8_t* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return hn::Set(Ints(), word);
}

/// Each byte shifted right by S bits and masked.
template <int S>
HWY_INLINE HWY_ATTR CodeBytes bits_of(CodeBytes bytes, CodeBytes mask) {
  if constexpr (S == 0) return hn::And(bytes, mask);
  const hn::Repartition<uint16_t, Ints> words;
  return hn::And(hn::BitCast(Ints8(), hn::ShiftRight<S>(hn::BitCast(words, bytes))), mask);
}

/// The nearest whole number, ties to even, of |x| < 2^22: two operations instead of Highway's seven, which
/// care for more. Garbage for NaN.
HWY_INLINE HWY_ATTR IntVec nearest(Vec x) {
  const auto shifted = hn::Add(x, hn::Set(Floats(), 12582912.f));  // 1.5·2^23
  return hn::Sub(hn::BitCast(Ints(), shifted), hn::Set(Ints(), 0x4b400000));
}

/// x = 256·high + low, all of them in int8: 16 bits of fixed point. x within ±32639.
HWY_INLINE HWY_ATTR void store_halves(IntVec x, int8_t* high, int8_t* low) {
  const Ints i;
  const hn::Rebind<int8_t, Ints> bytes;
  const auto h = hn::ShiftRight<8>(hn::Add(x, hn::Set(i, 128)));
  hn::StoreU(hn::DemoteTo(bytes, h), bytes, high);
  hn::StoreU(hn::DemoteTo(bytes, hn::Sub(x, hn::ShiftLeft<8>(h))), bytes, low);
}

/// store_halves of a page's 64 values, each at the byte that a ByteOrder {kPageStep, kPageField} says: value
/// 16p + 4f + e at p·kPageStep + f·kPageField + e. x within ±32639.
constexpr size_t kPageParts = 64 / kLanes;
#if HWY_TARGET == HWY_AVX3  // packs work within 128 bits, so the order is theirs
constexpr int kPageStep = 4, kPageField = 16;
HWY_INLINE HWY_ATTR void store_page_halves(const IntVec (&x)[kPageParts], int8_t* high, int8_t* low) {
  const __m512i a = _mm512_packs_epi32(x[0].raw, x[1].raw), b = _mm512_packs_epi32(x[2].raw, x[3].raw);
  const __m512i half = _mm512_set1_epi16(128), byte = _mm512_set1_epi16(255);
  _mm512_storeu_si512(low, _mm512_packus_epi16(_mm512_and_si512(a, byte), _mm512_and_si512(b, byte)));
  _mm512_storeu_si512(high, _mm512_packs_epi16(_mm512_srai_epi16(_mm512_add_epi16(a, half), 8),
                                               _mm512_srai_epi16(_mm512_add_epi16(b, half), 8)));
}
#else
constexpr int kPageStep = 16, kPageField = 4;
HWY_INLINE HWY_ATTR void store_page_halves(const IntVec (&x)[kPageParts], int8_t* high, int8_t* low) {
  for (size_t i = 0; i < kPageParts; i++) store_halves(x[i], high + i * kLanes, low + i * kLanes);
}
#endif
