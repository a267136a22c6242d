// bf16 and fp16 as bit patterns, converted to nearest even, the same bits on every machine. Part of the
// coder's specification: no compiler or SIMD library conversion is used where codes are chosen. NaN converts
// to a quiet NaN; values past the range of fp16 become infinity (the coder clamps before).
#pragma once

#include <bit>
#include <cstdint>

namespace kv2 {

struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};

inline float to_float(bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

inline bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1)) >> 16)};
}

inline float to_float(fp16 h) {
  const uint32_t sign = static_cast<uint32_t>(h.bits & 0x8000) << 16, exp = (h.bits >> 10) & 31,
                 man = h.bits & 0x3ff;
  if (exp == 0) {  // zero or subnormal: man * 2^-24, exact
    const float v = static_cast<float>(man) * 0x1p-24f;
    return sign ? -v : v;
  }
  if (exp == 31) return std::bit_cast<float>(sign | 0x7f800000u | (man << 13));
  return std::bit_cast<float>(sign | ((exp + 112) << 23) | (man << 13));
}

inline fp16 to_fp16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), a = u & 0x7fffffffu;
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000);
  if (a > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (a >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00)};  // rounds to 65536 or more
  if (a < 0x38800000u) {  // below 2^-14: subnormal, one rounding through an addition that aligns the bits
    const float r = std::bit_cast<float>(a) + 0.5f;  // ulp of 0.5 is 2^-24: rounds to nearest even there
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(r) - 0x3f000000u))};
  }
  const uint32_t r = a + 0xfffu + ((a >> 13) & 1);
  return {static_cast<uint16_t>(sign | ((r - 0x38000000u) >> 13))};
}

}  // namespace kv2
