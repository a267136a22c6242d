// SPDX-License-Identifier: Apache-2.0
// TurboQuant's codecs against models in double precision: the levels are the best ones for a Gaussian, codes
// are the nearest levels of a normalised vector, QJL's estimate is unbiased.
#include <functional>

#include "kv2/error.h"
#include "quant/gauss/levels.h"
#include "quant/test_side.h"

namespace kv2 {
namespace {

using testing::BorderCount;
using testing::half;
using testing::TestSide;

/// The published levels (Max 1960), ascending positive ones, to more digits by iteration in double precision.
std::vector<double> published(int bits) {
  if (bits == 1) return {0.79788456};
  if (bits == 2) return {0.45278004, 1.51041761};
  if (bits == 3) return {0.24509418, 0.75600528, 1.34390928, 2.15194571};
  return {0.12839503, 0.38804830, 0.65675912, 0.94234046, 1.25623120, 1.61804639, 2.06901723, 2.73258957};
}

TEST(Gauss, LevelsAreTheMeansOfTheirCells) {
  for (int bits = 1; bits <= 4; bits++) {
    const std::vector<double> known = published(bits);
    const int n = 1 << bits;
    double error = 0;
    std::vector<double> sum(n, 0.0), weight(n, 0.0);
    for (double x = -8; x < 8; x += 1e-4) {
      const double p = std::exp(-x * x / 2) / std::sqrt(2 * M_PI) * 1e-4;
      const int code = gauss::code_of(bits, static_cast<float>(x));
      sum[code] += p * x, weight[code] += p;
      error += p * std::pow(x - gauss::level(bits, code), 2);
    }
    for (int c = 0; c < n; c++) {
      EXPECT_NEAR(gauss::level(bits, c), sum[c] / weight[c], 2e-4) << bits << " bits, code " << c;
      EXPECT_EQ(gauss::level(bits, c), -gauss::level(bits, n - 1 - c));
      if (c >= n / 2) {
        EXPECT_NEAR(gauss::level(bits, c), known[c - n / 2], 6e-4);
      }
    }
    const double expected[] = {0.3634, 0.1175, 0.03454, 0.009497};
    EXPECT_NEAR(error, expected[bits - 1], 2e-4);
  }
}

TEST(Gauss, IsItsModelInDoublePrecision) {
  for (const int d : {32, 64, 80, 128}) {
    const TestSide side(3, d, static_cast<unsigned>(d));
    for (int bits = 1; bits <= 4; bits++) {
      for (const NormRule rule : {NormRule::Plain, NormRule::Corrected}) {
        const SideFormat f = side.resolved({.codec = CodecId::Gauss, .bits = bits});
        EXPECT_EQ(8.0 * page_codec(f.codec).bytes(f, side.shape) / (3.0 * 64 * d), bits + 16.0 / d);
        const std::vector<float> got = side.decode(f, side.encode(f, {.norm_rule = rule}));
        BorderCount borders;
        for (int h = 0; h < 3; h++)
          for (int t = 0; t < kPageTokens; t++) {
            double square = 0, levels = 0, decoded = 0;
            for (int c = 0; c < d; c++) square += side.at(h, t, c) * side.at(h, t, c);
            const double rms = std::sqrt(square / d);
            std::vector<double> l(d);
            for (int c = 0; c < d; c++) {
              double nearest = 1e9;
              for (const double p : published(bits))
                for (const double q : {p, -p})
                  if (std::fabs(side.at(h, t, c) / rms - q) < std::fabs(side.at(h, t, c) / rms - nearest))
                    nearest = q;
              l[c] = nearest, levels += nearest * nearest;
            }
            const double scale = rule == NormRule::Plain ? rms : std::sqrt(square / levels);
            for (int c = 0; c < d; c++) {
              const double x = got[side.index(h, t, c)];
              decoded += x * x;
              const bool same =
                  std::fabs(x - scale * l[c]) <= 1e-3 * scale * std::fabs(l[c]);  // the scale is fp16
              borders.expect(x, same ? x : scale * l[c], 1.7 * scale);
            }
            if (rule == NormRule::Corrected) {
              EXPECT_NEAR(std::sqrt(decoded), std::sqrt(square), 1e-3 * std::sqrt(square));
            }
          }
      }
    }
  }
}

/// Mean over many random pairs of (q·x̂ − q·x) ÷ (|q|·|x|), and its spread.
std::pair<double, double> dot_error(const SideFormat& f, bool along_x) {
  double sum = 0, square = 0, n = 0;
  for (unsigned seed = 1; seed <= 12; seed++) {
    const TestSide side(2, 64, seed, 0.0f);
    const std::vector<float> got = side.decode(f, side.encode(f, {.norm_rule = NormRule::Plain}));
    std::mt19937 rng(seed);
    std::normal_distribution<double> normal;
    for (int h = 0; h < 2; h++)
      for (int t = 0; t < kPageTokens; t++) {
        double dot = 0, qq = 0, xx = 0;
        for (int c = 0; c < 64; c++) {
          const double x = side.at(h, t, c), q = along_x ? x : normal(rng);
          dot += q * (got[side.index(h, t, c)] - x), qq += q * q, xx += x * x;
        }
        const double e = dot / std::sqrt(qq * xx);
        sum += e, square += e * e, n++;
      }
  }
  return {sum / n, std::sqrt(square / n)};
}

TEST(Qjl, EstimatesDotProductsWithoutBias) {
  for (const int bits : {2, 3, 4}) {
    const TestSide side(2, 64, 3);
    const SideFormat qjl = side.resolved({.codec = CodecId::Qjl, .bits = bits});
    const SideFormat levels = side.resolved({.codec = CodecId::Gauss, .bits = bits - 1});
    EXPECT_EQ(8.0 * page_codec(qjl.codec).bytes(qjl, side.shape) / (2.0 * 64 * 64), bits + 32.0 / 64);
    // Levels alone shrink a vector's projection on itself by about their error; the signs bring it back.
    const double shrunk = dot_error(levels, true).first, back = dot_error(qjl, true).first;
    EXPECT_LT(shrunk, -0.02) << bits;
    EXPECT_LT(std::fabs(back), 0.25 * std::fabs(shrunk)) << bits;
    EXPECT_LT(std::fabs(dot_error(qjl, false).first), 0.01);
  }
}

TEST(Gauss, HardRowsStayFinite) {
  TestSide side(1, 32, 9);
  const float hard[] = {0.0f, 1e-39f, 3e38f, INFINITY, NAN};
  for (int t = 0; t < kPageTokens; t++)
    for (int c = 0; c < 32; c++)
      if (t < 5 || c % 7 == 0) side.rows[side.index(0, t, c)] = to_bf16(hard[(t < 5 ? t : c) % 5]);
  for (const CodecId id : {CodecId::Gauss, CodecId::Qjl}) {
    const SideFormat f = side.resolved({.codec = id, .bits = 3});
    const std::vector<float> got = side.decode(f, side.encode(f));
    for (const float x : got) ASSERT_TRUE(std::isfinite(x));
    for (int c = 0; c < 32; c++) EXPECT_EQ(got[side.index(0, 0, c)], 0.0f) << "a row of zeros";
  }
}

TEST(Gauss, RefusalsSayWhatFits) {
  const TestSide side(1, 64, 1);
  const auto refusal = [&](SideFormat f) -> std::string {
    try {
      side.resolved(f);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(refusal({.codec = CodecId::Gauss, .bits = 8}).find("1, 2, 3 or 4"), std::string::npos);
  EXPECT_NE(refusal({.codec = CodecId::Qjl, .bits = 1}).find("2, 3 or 4"), std::string::npos);
  EXPECT_NE(refusal({.codec = CodecId::Gauss, .bits = 2, .group = 32}).find("64 channels"),
            std::string::npos);
}

}  // namespace
}  // namespace kv2
