// SPDX-License-Identifier: Apache-2.0
// The public quantizer: the header's example, the same bits as the scalar specification, refusals.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kv2/error.h"
#include "kv2/quant.h"
#include "quant/int2/int2.h"

namespace kv2 {
namespace {

std::vector<float> random_rows(int d, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.4f, 1.0f);
  std::vector<float> rows(static_cast<size_t>(kPageTokens) * d);
  for (float& x : rows) x = normal(rng);
  for (int t = 0; t < kPageTokens; ++t) rows[t * d + 5] += 40;  // an outlier channel
  return rows;
}

double relative_error(const std::vector<float>& found, const std::vector<float>& expected) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(error / norm);
}

TEST(QuantApi, TheExampleRotatesEncodesAndComesBack) {
  const QuantOptions options{.head_dim = 128, .clip = 0.92f};
  EXPECT_EQ(codes_size(options), 2048u);
  EXPECT_EQ(params_size(options), 128u);
  EXPECT_EQ(bits_per_element(options), 2.25);
  const std::vector<float> original = random_rows(128, 1);
  std::vector<float> rows = original, plain = original;
  std::vector<uint8_t> codes(codes_size(options));
  std::vector<uint16_t> params(params_size(options));
  const auto round_trip = [&](std::vector<float>& x, float clip) {
    const QuantOptions o{.head_dim = 128, .clip = clip};
    encode_page(x, o, codes, params);
    decode_page(codes, params, o, x);
  };
  rotate_hadamard(rows, 128);
  round_trip(rows, 1.0f);
  unrotate_hadamard(rows, 128);
  round_trip(plain, 1.0f);
  EXPECT_LT(relative_error(rows, original), 0.5 * relative_error(plain, original))
      << "the rotation halves the error of an outlier channel at least";
}

TEST(QuantApi, SameBitsAsTheSpecification) {
  for (int d : {64, 80, 96, 112, 128, 192, 256}) {
    for (float clip : {1.0f, 0.96f, 0.84f}) {
      const QuantOptions options{.head_dim = d, .group = d % 32 == 0 ? 32 : 0, .clip = clip};
      const int group = options.group ? options.group : d;
      const std::vector<float> rows = random_rows(d, static_cast<uint32_t>(d));
      std::vector<bf16> rounded(rows.size());
      std::vector<uint16_t> bits(rows.size());
      for (size_t i = 0; i < rows.size(); ++i) bits[i] = (rounded[i] = to_bf16(rows[i])).bits;
      std::vector<uint8_t> codes(codes_size(options)), from_bits(codes.size()), want(codes.size());
      std::vector<uint16_t> params(params_size(options)), params_from_bits(params.size());
      std::vector<fp16> want_params(params.size());
      encode_page(rows, options, codes, params);
      encode_page(bits, options, from_bits, params_from_bits);
      int2::encode_rows_reference(rounded.data(), d, d, {.group = group, .clip_index = clip_index(clip, d)},
                                  want.data(), want_params.data());
      EXPECT_EQ(codes, want) << d;
      EXPECT_EQ(from_bits, want) << d;
      EXPECT_EQ(params, params_from_bits) << d;
      for (size_t i = 0; i < params.size(); ++i) ASSERT_EQ(params[i], want_params[i].bits);
    }
  }
}

TEST(QuantApi, HadamardComesBackAndKeepsLengths) {
  for (int d : {12, 64, 80, 96, 112, 128, 192}) {
    std::vector<float> rows = random_rows(d, 3);
    rows.resize(static_cast<size_t>(7) * d);
    const std::vector<float> original = rows;
    double before = 0, after = 0;
    for (float x : rows) before += static_cast<double>(x) * x;
    rotate_hadamard(rows, d);
    for (float x : rows) after += static_cast<double>(x) * x;
    EXPECT_NEAR(after, before, 1e-6 * before);
    EXPECT_GT(relative_error(rows, original), 0.1) << "something was rotated";
    unrotate_hadamard(rows, d);
    EXPECT_LT(relative_error(rows, original), 1e-6) << d;
  }
}

TEST(QuantApi, RefusesWhatDoesNotFit) {
  std::vector<float> rows(64 * 64);
  std::vector<uint8_t> codes(64 * 16);
  std::vector<uint16_t> params(128);
  const auto refused = [&](QuantOptions options) {
    EXPECT_THROW(encode_page(rows, options, codes, params), Error);
    EXPECT_THROW(decode_page(codes, params, options, rows), Error);
  };
  EXPECT_NO_THROW(encode_page(rows, {.head_dim = 64}, codes, params));
  for (int d : {-64, 0, 62, 80, 516, 1 << 30}) refused({.head_dim = d});
  for (int group : {-4, 3, 6, 48, 128, 32})
    refused({.head_dim = 64, .group = group});  // 32: params too small
  for (float clip : {0.0f, -1.0f, 1.1f, NAN}) refused({.head_dim = 64, .clip = clip});
  codes.pop_back();
  refused({.head_dim = 64});
  EXPECT_THROW(rotate_hadamard(rows, 72), Error);
  EXPECT_THROW(rotate_hadamard(std::span<float>(rows).first(65), 64), Error);
}

}  // namespace
}  // namespace kv2
