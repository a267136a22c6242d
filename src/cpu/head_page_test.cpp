// SPDX-License-Identifier: Apache-2.0
// The private layout of a head page: converters are exact both ways, and what attention reads from it equals
// what the codec's own decoder gives, bit for bit, on every SIMD target.
#include "cpu/head_page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cpu/elementwise.h"
#include "cpu/test_targets.h"
#include "quant/int2/int2.h"

namespace kv2::cpu {
namespace {

constexpr int kHeadDims[] = {16, 64, 80, 96, 112, 128, 192, 256};

std::vector<std::byte> random_bytes(size_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<std::byte> bytes(n);
  for (auto& b : bytes) b = static_cast<std::byte>(generator());
  return bytes;
}

/// Random codes; scales and offsets of every size, subnormal ones included, but finite.
std::vector<std::byte> random_packed(const Int2Layout& layout, unsigned seed) {
  auto page = random_bytes(layout.bytes(), seed);
  std::mt19937 generator(seed + 1);
  auto* params = reinterpret_cast<fp16*>(page.data() + layout.k_params());
  for (size_t i = 0; i < 2 * layout.params_bytes() / sizeof(fp16); i++)
    params[i].bits = static_cast<uint16_t>((generator() & 0x83ff) | (generator() % 31) << 10);
  return page;
}

TEST(HeadPage, FullPagesSurviveTheRoundTripAndKeysAreTransposed) {
  for (const int d : kHeadDims) {
    const size_t n = static_cast<size_t>(kPageTokens) * d;
    const auto canonical = random_bytes(4 * n, 7 + d);
    std::vector<std::byte> page(4 * n), back(4 * n);
    import_full(page.data(), d, canonical.data());
    export_full(page.data(), d, back.data());
    EXPECT_EQ(back, canonical) << d;
    const auto* rows = reinterpret_cast<const uint16_t*>(canonical.data());
    const auto* inside = reinterpret_cast<const uint16_t*>(page.data());
    for (int t : {0, 1, 31, 63})
      for (int c : {0, 5, d - 1}) {
        EXPECT_EQ(inside[c * kPageTokens + t], rows[t * d + c]);
        EXPECT_EQ(inside[n + t * d + c], rows[n + t * d + c]);
      }
  }
}

TEST(HeadPage, PackedPagesSurviveTheRoundTrip) {
  for (const int d : kHeadDims)
    for (const int group : {4, 16, d / 2, d}) {
      if (d % group != 0) continue;
      const Int2Layout layout{d, group};
      const auto canonical = random_bytes(layout.bytes(), d + group);
      std::vector<std::byte> page(layout.bytes()), back(layout.bytes());
      import_packed(page.data(), layout, canonical.data());
      export_packed(page.data(), layout, back.data());
      EXPECT_EQ(back, canonical) << d << " group " << group;
    }
}

TEST(HeadPage, ExpandedPackedPagesAreTheDecodersBits) {
  for_each_simd_target([] {
    for (const int d : kHeadDims)
      for (const int group : {4, 8, 20, 24, 40, 48, 16, d / 2, d}) {
        if (d % group != 0) continue;
        const Int2Layout layout{d, group};
        const auto canonical = random_packed(layout, d * 3 + group);
        std::vector<std::byte> page(layout.bytes());
        import_packed(page.data(), layout, canonical.data());
        const size_t n = static_cast<size_t>(kPageTokens) * d;
        std::vector<float> k(n), v(n), want_k(n), want_v(n);
        expand_packed_keys(page.data(), layout, k.data());
        expand_packed_values(page.data(), layout, v.data());
        const auto codes = [&](size_t at) { return reinterpret_cast<const uint8_t*>(canonical.data() + at); };
        const auto params = [&](size_t at) { return reinterpret_cast<const fp16*>(canonical.data() + at); };
        int2::decode_rows(codes(layout.k_codes()), params(layout.k_params()), d, group, want_k.data());
        int2::decode_rows(codes(layout.v_codes()), params(layout.v_params()), d, group, want_v.data());
        for (int t = 0; t < kPageTokens; t++)
          for (int c = 0; c < d; c++)
            ASSERT_EQ(k[c * kPageTokens + t], want_k[t * d + c])
                << d << " group " << group << " key " << t << "," << c;
        ASSERT_EQ(std::memcmp(v.data(), want_v.data(), n * sizeof(float)), 0) << d << " group " << group;
      }
  });
}

// Every fp16 there is goes through the params: Highway's conversion must be exact, subnormals included.
TEST(HeadPage, ParamsAreConvertedExactly) {
  for_each_simd_target([] {
    const Int2Layout layout{16, 16};
    for (int first = 0; first < 0x10000; first += kPageTokens) {
      std::vector<std::byte> page(layout.bytes());  // codes 0: x̂ = offset
      auto* params = reinterpret_cast<fp16*>(page.data() + layout.k_params());
      for (int t = 0; t < kPageTokens; t++) params[kPageTokens + t].bits = static_cast<uint16_t>(first + t);
      std::vector<float> k(16 * kPageTokens), v(16 * kPageTokens);
      expand_packed_keys(page.data(), layout, k.data());
      expand_packed_values(page.data(), layout, v.data());
      for (int t = 0; t < kPageTokens; t++) {
        const float want = to_float(fp16{static_cast<uint16_t>(first + t)});
        if (std::isnan(want))
          EXPECT_TRUE(std::isnan(k[t]));
        else
          ASSERT_EQ(k[t], want) << first + t;
      }
    }
  });
}

TEST(HeadPage, ExpandedFullPagesHideWhatLiesBeyondTheLastToken) {
  for_each_simd_target([] {
    for (const int d : {64, 80, 128})
      for (const int n_tokens : {1, 7, 8, 16, 33, 63, 64}) {
        const size_t n = static_cast<size_t>(kPageTokens) * d;
        std::vector<uint16_t> rows(2 * n, 0x7fc1);  // NaN where nothing was written
        std::mt19937 generator(d + n_tokens);
        for (size_t i = 0; i < static_cast<size_t>(n_tokens) * d; i++) {
          rows[i] = static_cast<uint16_t>(generator() & 0xbfff);
          rows[n + i] = static_cast<uint16_t>(generator() & 0xbfff);
        }
        std::vector<std::byte> page(4 * n);
        import_full(page.data(), d, reinterpret_cast<const std::byte*>(rows.data()));
        std::vector<float> k(n, -1.f), v(n, -1.f);
        expand_full_keys(page.data(), d, n_tokens, k.data());
        expand_full_values(page.data(), d, n_tokens, v.data());
        for (int t = 0; t < kPageTokens; t++)
          for (int c = 0; c < d; c++) {
            const bool held = t < n_tokens;
            ASSERT_EQ(k[c * kPageTokens + t], held ? to_float(bf16{rows[t * d + c]}) : 0.f);
            ASSERT_EQ(v[t * d + c], held ? to_float(bf16{rows[n + t * d + c]}) : -1.f);
          }
      }
  });
}

TEST(HeadPage, RowsAreRoundedToNearestEvenInPlace) {
  const int d = 80, stride = 200;
  const size_t n = static_cast<size_t>(kPageTokens) * d;
  std::mt19937 generator(5);
  std::vector<float> k(9 * stride), v(9 * stride);
  for (auto* x : {&k, &v})
    for (float& f : *x) f = std::bit_cast<float>(static_cast<uint32_t>(generator()) & 0xbfffffffu);
  std::vector<std::byte> page(4 * n), canonical(4 * n);
  write_rows(page.data(), d, 23, 9, k.data(), v.data(), stride);
  export_full(page.data(), d, canonical.data());
  const auto* rows = reinterpret_cast<const uint16_t*>(canonical.data());
  for (int t = 0; t < kPageTokens; t++)
    for (int c = 0; c < d; c++) {
      const bool written = t >= 23 && t < 32;
      EXPECT_EQ(rows[t * d + c], written ? to_bf16(k[(t - 23) * stride + c]).bits : 0);
      EXPECT_EQ(rows[n + t * d + c], written ? to_bf16(v[(t - 23) * stride + c]).bits : 0);
    }
}

TEST(Bf16Rows, MatchTheScalarConversionOnEveryTarget) {
  std::mt19937 generator(11);
  std::vector<float> x(100003);
  for (float& f : x) f = std::bit_cast<float>(static_cast<uint32_t>(generator()));
  const float special[] = {
      0.f,         -0.f,       INFINITY, -INFINITY, NAN, 0x1p-149f, std::numeric_limits<float>::max(),
      1.00390625f, 1.01171875f};  // the last two are ties
  std::copy(std::begin(special), std::end(special), x.begin());
  for_each_simd_target([&] {
    std::vector<bf16> y(x.size());
    std::vector<float> back(x.size());
    to_bf16_row(x.data(), x.size(), y.data());
    from_bf16_row(y.data(), y.size(), back.data());
    for (size_t i = 0; i < x.size(); i++) {
      ASSERT_EQ(y[i].bits, to_bf16(x[i]).bits) << x[i];
      ASSERT_EQ(std::bit_cast<uint32_t>(back[i]), static_cast<uint32_t>(y[i].bits) << 16);
    }
  });
}

}  // namespace
}  // namespace kv2::cpu
