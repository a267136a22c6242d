// SPDX-License-Identifier: Apache-2.0
// int2 against an oracle in double precision written from docs/page-format.md, and the Highway twin against
// the scalar specification, bit for bit, on every target that this machine runs.
#include "quant/int2/int2.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kv2/error.h"
#include "quant/clip.h"
#include "quant/test_rows.h"

namespace kv2::int2 {
namespace {

using namespace kv2::testing;

constexpr int kHeadDims[] = {64, 80, 96, 112, 128, 192, 256};

/// Nearest fp16 by search over all finite fp16 values in double, ties to the even bit pattern.
uint16_t nearest_half(double x) {
  uint16_t low = 0, high = 0x7bff;  // magnitudes are ordered like their bits
  const double a = std::fabs(x);
  const auto value = [](uint16_t bits) { return static_cast<double>(to_float(fp16{bits})); };
  while (high - low > 1) {
    const uint16_t middle = static_cast<uint16_t>((low + high) / 2);
    (value(middle) <= a ? low : high) = middle;
  }
  const double below = a - value(low), above = value(high) - a;
  const bool up = above < below || (above == below && high % 2 == 0);
  return static_cast<uint16_t>((up ? high : low) | (std::signbit(x) && x != 0 ? 0x8000 : 0));
}

struct Oracle {
  std::vector<int> codes;
  std::vector<uint16_t> scale, offset;
};

/// The steps of the specification, each fp32 operation done in double and rounded once to float.
Oracle oracle(const bf16* x, int d, const Coder& coder) {
  std::vector<double> v(d), sorted(d);
  for (int i = 0; i < d; ++i) {
    const float f = to_float(x[i]);
    v[i] = std::isnan(f) ? 0.0 : std::isinf(f) ? std::copysign(0x1.FEp127, f) : f;
    sorted[i] = std::fabs(v[i]);
  }
  std::sort(sorted.begin(), sorted.end());
  if (coder.clip_index >= 0) {
    for (double& e : v) e = std::min(std::max(e, -sorted[coder.clip_index]), sorted[coder.clip_index]);
  }
  Oracle out;
  for (int first = 0; first < d; first += coder.group) {
    const auto [mn, mx] = std::minmax_element(v.begin() + first, v.begin() + first + coder.group);
    const double third = static_cast<float>(static_cast<float>(*mx - *mn) / 3.0);
    out.scale.push_back(nearest_half(std::clamp(third, 0x1p-24, 65504.0)));
    out.offset.push_back(nearest_half(std::clamp(*mn, -65504.0, 65504.0)));
    const double s = to_float(fp16{out.scale.back()}), o = to_float(fp16{out.offset.back()});
    for (int i = first; i < first + coder.group; ++i) {
      const double y = static_cast<float>(static_cast<float>(static_cast<float>(v[i] - o) / s) + 0.5);
      out.codes.push_back(*mn == *mx ? 0 : static_cast<int>(std::clamp(std::floor(y), 0.0, 3.0)));
    }
  }
  return out;
}

std::vector<Coder> coders(int d) {
  std::vector<Coder> list;
  for (int group = 4; group <= d; group += 4) {
    if (d % group != 0 || (group < 16 && group != 4)) continue;
    for (int index : {-1, 0, d / 2, clip_index(0.84, d), clip_index(0.96, d), d - 1}) {
      list.push_back({.group = group, .clip_index = index});
    }
  }
  return list;
}

struct Page {
  std::vector<uint8_t> codes;
  std::vector<fp16> params;
  Page(int d, int group)
      : codes(kPageTokens * d / 4, 0xaa), params(kPageTokens * d / group * 2, fp16{0xaaaa}) {}
  bool operator==(const Page& other) const {
    return codes == other.codes &&
           std::equal(params.begin(), params.end(), other.params.begin(), other.params.end(),
                      [](fp16 a, fp16 b) { return a.bits == b.bits; });
  }
};

TEST(Int2, SpecificationEqualsDoubleOracle) {
  std::mt19937 rng(1);
  for (int d : kHeadDims) {
    for (const Coder& coder : coders(d)) {
      for (int kind = 0; kind < static_cast<int>(Kind::kCount); ++kind) {
        std::vector<bf16> x(d);
        fill(static_cast<Kind>(kind), rng, x.data(), d);
        std::vector<uint8_t> codes(d);
        std::vector<fp16> scale(d / coder.group), offset(d / coder.group);
        encode_vector(x.data(), d, coder, codes.data(), scale.data(), offset.data());
        const Oracle want = oracle(x.data(), d, coder);
        for (size_t g = 0; g < scale.size(); ++g) {
          ASSERT_EQ(scale[g].bits, want.scale[g]) << "d " << d << " kind " << kind << " group " << g;
          ASSERT_EQ(offset[g].bits, want.offset[g]) << "d " << d << " kind " << kind << " group " << g;
        }
        for (int i = 0; i < d; ++i)
          ASSERT_EQ(codes[i], want.codes[i]) << "d " << d << " kind " << kind << " i " << i;
      }
    }
  }
}

TEST(Int2, EveryTargetEqualsTheSpecification) {
  for_each_target([](const std::string& target) {
    std::mt19937 rng(7);
    for (int d : kHeadDims) {
      const size_t stride = d + 3;  // rows of a view, not aligned to anything
      std::vector<bf16> rows(kPageTokens * stride, from_bits(0x7fc0));
      for (const Coder& coder : coders(d)) {
        for (int t = 0; t < kPageTokens; ++t) {
          fill(static_cast<Kind>(rng() % static_cast<int>(Kind::kCount)), rng, rows.data() + t * stride, d);
        }
        Page want(d, coder.group), got(d, coder.group);
        encode_rows_reference(rows.data(), stride, d, coder, want.codes.data(), want.params.data());
        encode_rows(rows.data(), stride, d, coder, got.codes.data(), got.params.data());
        ASSERT_TRUE(want == got) << target << " d " << d << " group " << coder.group << " clip "
                                 << coder.clip_index;
      }
    }
  });
}

// Every bf16 number as the extreme of a group: the vector conversions to fp16 see each of them.
TEST(Int2, EveryBfloatOnEveryTarget) {
  for_each_target([](const std::string& target) {
    const int d = 64;
    const Coder coder{.group = 4, .clip_index = -1};
    std::vector<bf16> rows(kPageTokens * d);
    for (uint32_t first = 0; first < 0x10000; first += kPageTokens * d / 4) {
      for (size_t i = 0; i < rows.size(); ++i) {
        // x, 0, 0, -x/3-ish: offset sees x itself, scale sees x/3 and sums.
        const uint32_t bits = first + static_cast<uint32_t>(i / 4);
        rows[i] = from_bits(i % 4 == 0 ? bits : i % 4 == 3 ? (bits * 2654435761u >> 16) : 0);
      }
      Page want(d, 4), got(d, 4);
      encode_rows_reference(rows.data(), d, d, coder, want.codes.data(), want.params.data());
      encode_rows(rows.data(), d, d, coder, got.codes.data(), got.params.data());
      ASSERT_TRUE(want == got) << target << " from " << first;
    }
  });
}

TEST(Int2, ConstantGroupsAreCodeZero) {
  std::vector<bf16> x(64, to_bf16(-2.5f));
  std::vector<uint8_t> codes(64, 9);
  fp16 scale, offset;
  encode_vector(x.data(), 64, {.group = 64}, codes.data(), &scale, &offset);
  EXPECT_EQ(codes, std::vector<uint8_t>(64, 0));
  EXPECT_EQ(scale.bits, 0x0001);
  EXPECT_EQ(to_float(offset), -2.5f);
  x.assign(64, from_bits(0x8000));  // -0
  encode_vector(x.data(), 64, {.group = 64}, codes.data(), &scale, &offset);
  EXPECT_EQ(offset.bits, 0) << "a minimum of -0 is stored as +0";
}

TEST(Int2, NanIsZeroAndInfinityIsFinite) {
  EXPECT_EQ(finite(from_bits(0x7f81)).bits, 0);
  EXPECT_EQ(finite(from_bits(0xffff)).bits, 0);
  EXPECT_EQ(finite(from_bits(0x7f80)).bits, 0x7f7f);
  EXPECT_EQ(finite(from_bits(0xff80)).bits, 0xff7f);
  EXPECT_EQ(finite(from_bits(0x8001)).bits, 0x8001);
  std::vector<bf16> x(64, to_bf16(1.0f));
  x[0] = from_bits(0xff80);
  x[1] = from_bits(0x7f80);
  x[2] = from_bits(0x7fc0);
  std::vector<uint8_t> codes(64);
  std::vector<float> back(64);
  fp16 scale, offset;
  encode_vector(x.data(), 64, {.group = 64}, codes.data(), &scale, &offset);
  decode_vector(codes.data(), &scale, &offset, 64, 64, back.data());
  EXPECT_EQ(to_float(scale), 65504.0f);
  EXPECT_EQ(to_float(offset), -65504.0f);
  for (float v : back) EXPECT_TRUE(std::isfinite(v));
}

// At four evenly spaced fp16 values nothing is lost.
TEST(Int2, FourLevelsComeBackExactly) {
  std::mt19937 rng(3);
  std::vector<bf16> rows(kPageTokens * 128);
  for (bf16& x : rows) x = to_bf16(-1.5f + 0.75f * static_cast<float>(rng() % 4));
  for (int t = 0; t < kPageTokens; ++t) {
    rows[t * 128] = to_bf16(-1.5f);
    rows[t * 128 + 127] = to_bf16(0.75f);
  }
  Page page(128, 128);
  encode_rows(rows.data(), 128, 128, {.group = 128}, page.codes.data(), page.params.data());
  std::vector<float> back(rows.size());
  decode_rows(page.codes.data(), page.params.data(), 128, 128, back.data());
  for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(back[i], to_float(rows[i])) << i;
}

TEST(Int2, DecodeRowsEqualsDecodeVector) {
  std::mt19937 rng(11);
  for (int d : kHeadDims) {
    const int group = d % 32 == 0 ? 32 : d / 2;
    std::vector<bf16> rows(kPageTokens * d);
    for (int t = 0; t < kPageTokens; ++t) fill(Kind::Shifted, rng, rows.data() + t * d, d);
    const Coder coder{.group = group, .clip_index = clip_index(0.92, d)};
    Page page(d, group);
    encode_rows(rows.data(), d, d, coder, page.codes.data(), page.params.data());
    std::vector<float> back(rows.size()), row(d);
    decode_rows(page.codes.data(), page.params.data(), d, group, back.data());
    std::vector<uint8_t> codes(d);
    std::vector<fp16> scale(d / group), offset(d / group);
    for (int t = 0; t < kPageTokens; ++t) {
      encode_vector(rows.data() + t * d, d, coder, codes.data(), scale.data(), offset.data());
      decode_vector(codes.data(), scale.data(), offset.data(), d, group, row.data());
      for (int i = 0; i < d; ++i)
        ASSERT_EQ(back[t * d + i], row[i]) << "d " << d << " token " << t << " i " << i;
    }
  }
}

// Without clip every value lies within half a step of its x̂ (plus the rounding of scale and offset).
TEST(Int2, ErrorIsWithinHalfAStep) {
  std::mt19937 rng(5);
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<bf16> x(128);
    fill(Kind::Shifted, rng, x.data(), 128);
    std::vector<uint8_t> codes(128);
    std::vector<float> back(128);
    fp16 scale, offset;
    encode_vector(x.data(), 128, {.group = 128}, codes.data(), &scale, &offset);
    decode_vector(codes.data(), &scale, &offset, 128, 128, back.data());
    const double slack = 4 * 0x1p-11 * (3 * to_float(scale) + std::fabs(to_float(offset)));
    for (int i = 0; i < 128; ++i) {
      ASSERT_LE(std::fabs(back[i] - to_float(x[i])), 0.5 * to_float(scale) + slack);
    }
  }
}

TEST(Int2, ClipIndexIsTheFloorOfTheDecimalRatio) {
  EXPECT_EQ(clip_index(0.96f, 128), 122);
  EXPECT_EQ(clip_index(0.92f, 128), 117);
  EXPECT_EQ(clip_index(1.0, 128), -1);
  EXPECT_EQ(clip_index(0.0, 128), -1);
  EXPECT_EQ(clip_index(0.999999, 64), 63);
  for (int d : kHeadDims) {
    for (int thousandths = 1; thousandths < 1000; ++thousandths) {
      const float ratio = static_cast<float>(thousandths / 1000.0);
      ASSERT_EQ(clip_index(ratio, d), thousandths * d / 1000) << thousandths << " of " << d;
    }
  }
}

TEST(Int2, ImpossibleShapesAreBugs) {
  std::vector<bf16> rows(kPageTokens * 64, to_bf16(1));
  Page page(64, 64);
  const auto code = [&](int d, Coder coder) {
    encode_rows(rows.data(), 64, d, coder, page.codes.data(), page.params.data());
  };
  EXPECT_THROW(code(64, {.group = 0}), Error);
  EXPECT_THROW(code(64, {.group = 48}), Error);
  EXPECT_THROW(code(64, {.group = 2}), Error);
  EXPECT_THROW(code(0, {.group = 4}), Error);
  EXPECT_THROW(code(kMaxHeadDim + 4, {.group = 4}), Error);
  EXPECT_THROW(code(64, {.group = 64, .clip_index = 64}), Error);
}

}  // namespace
}  // namespace kv2::int2
