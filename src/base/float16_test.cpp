// SPDX-License-Identifier: Apache-2.0
// bf16 and fp16 conversions: every bit pattern comes back, and every rounding is the nearest value, ties to
// even, against an oracle that rounds in double precision.
#include "base/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace kv2 {
namespace {

/// x rounded to a format of `bits` significant bits, smallest exponent `min_exponent` (of the leading bit)
/// and largest finite value `largest`, in double: scale to an integer, nearbyint (to even), scale back.
double nearest(double x, int bits, int min_exponent, double largest) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int exponent = std::max(std::ilogb(x), min_exponent) - (bits - 1);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -exponent)), exponent);
  return std::fabs(rounded) > largest ? std::copysign(std::numeric_limits<double>::infinity(), x) : rounded;
}

void expect_nearest(float x) {
  if (std::isnan(x)) return;
  const double half = nearest(x, 11, -14, 65504.0), brain = nearest(x, 8, -126, 0x1.FEp127);
  ASSERT_EQ(static_cast<double>(to_float(to_fp16(x))), half) << std::hexfloat << x;
  ASSERT_EQ(static_cast<double>(to_float(to_bf16(x))), brain) << std::hexfloat << x;
  ASSERT_EQ(std::signbit(to_float(to_fp16(x))), std::signbit(x)) << std::hexfloat << x;
  ASSERT_EQ(std::signbit(to_float(to_bf16(x))), std::signbit(x)) << std::hexfloat << x;
}

TEST(Float16, EveryPatternComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const fp16 half{static_cast<uint16_t>(bits)};
    const bf16 brain{static_cast<uint16_t>(bits)};
    if ((bits & 0x7fff) <= 0x7c00) {
      ASSERT_EQ(to_fp16(to_float(half)).bits, bits);
    } else {
      ASSERT_TRUE(std::isnan(to_float(half)));
      ASSERT_GT(to_fp16(to_float(half)).bits & 0x7fff, 0x7c00) << "NaN stays NaN";
    }
    if ((bits & 0x7fff) <= 0x7f80) {
      ASSERT_EQ(to_bf16(to_float(brain)).bits, bits);
    } else {
      ASSERT_TRUE(std::isnan(to_float(brain)));
      ASSERT_EQ(to_bf16(to_float(brain)).bits, bits | 0x40) << "NaN stays NaN, quiet";
    }
  }
}

TEST(Float16, KnownValues) {
  EXPECT_EQ(to_fp16(1.0f).bits, 0x3c00);
  EXPECT_EQ(to_fp16(-2.0f).bits, 0xc000);
  EXPECT_EQ(to_fp16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(to_fp16(65519.99f).bits, 0x7bff);
  EXPECT_EQ(to_fp16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_fp16(0x1p-24f).bits, 0x0001);
  EXPECT_EQ(to_fp16(0x1p-25f).bits, 0x0000) << "tie to even";
  EXPECT_EQ(to_fp16(0x1.8p-24f).bits, 0x0002) << "tie to even";
  EXPECT_EQ(to_fp16(0x1.ffep-15f).bits, 0x0400) << "the largest subnormal's upper neighbour";
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bf16(0x1.01p0f).bits, 0x3f80) << "tie to even";
  EXPECT_EQ(to_bf16(0x1.03p0f).bits, 0x3f82) << "tie to even";
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
}

// Around every fp16 and bf16 value: the value, the middle to the next, and one fp32 step to either side of
// the middle.
TEST(Float16, NearestAroundEveryMidpoint) {
  for (uint32_t sign : {0u, 0x8000u}) {
    for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
      const float low = to_float(fp16{static_cast<uint16_t>(sign | bits)});
      const float high = bits == 0x7bff ? std::copysign(65536.0f, low)
                                        : to_float(fp16{static_cast<uint16_t>(sign | (bits + 1))});
      const float middle = low + (high - low) / 2;  // exact in fp32
      for (float x : {low, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 2 * high)})
        expect_nearest(x);
    }
    for (uint32_t bits = 0; bits < 0x7f80; ++bits) {
      const uint32_t word = (sign | bits) << 16;
      for (uint32_t low : {0x0u, 0x1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
        expect_nearest(std::bit_cast<float>(word | low));
      }
    }
  }
}

TEST(Float16, NearestOnRandomPatterns) {
  std::mt19937 rng(2);
  for (int i = 0; i < 2000000; ++i) expect_nearest(std::bit_cast<float>(static_cast<uint32_t>(rng())));
}

}  // namespace
}  // namespace kv2
