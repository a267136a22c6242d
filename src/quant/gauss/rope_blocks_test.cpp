// SPDX-License-Identifier: Apache-2.0
// Bits per channel: the allocation is the best one, the codec is its model in double precision, and it pays.
#include "quant/gauss/allocate.h"
#include "quant/gauss/levels.h"
#include "quant/test_side.h"

namespace kv2 {
namespace {

using testing::half;
using testing::TestSide;

TEST(RopeBlocks, AllocationIsTheBestOfAll) {
  const std::vector<float> energies = {9.0f, 0.2f, 1.0f, 0.01f};
  for (const int each : {1, 2, 3, 4}) {
    const std::vector<int> bits = gauss::allocate_bits(energies, each);
    const auto error = [&](const std::vector<int>& b) {
      double sum = 0;
      for (size_t i = 0; i < 4; i++) sum += energies[i] * gauss::kError[b[i]];
      return sum;
    };
    double best = 1e9;
    for (int n = 0; n < 256; n++) {
      const std::vector<int> b = {1 + n % 4, 1 + n / 4 % 4, 1 + n / 16 % 4, 1 + n / 64};
      if (b[0] + b[1] + b[2] + b[3] == 4 * each) best = std::min(best, error(b));
    }
    EXPECT_EQ(bits[0] + bits[1] + bits[2] + bits[3], 4 * each);
    EXPECT_NEAR(error(bits), best, 1e-6);
  }
}

TEST(RopeBlocks, IsItsModelAndPays) {
  const int d = 32, heads = 2;
  TestSide side(heads, d, 21, 0.0f);
  std::vector<float> energies(d), tables;
  for (int c = 0; c < d; c++) energies[c] = std::exp(-0.25f * static_cast<float>(c));
  for (int h = 0; h < heads; h++) {
    for (int t = 0; t < kPageTokens; t++)
      for (int c = 0; c < d; c++) {
        bf16& x = side.rows[side.index(h, t, c)];
        x = to_bf16(to_float(x) * std::sqrt(energies[c]) / (c == 3 ? 4.0f : 1.0f));
      }
    const std::vector<float> head = gauss::rope_block_tables(energies, 2);
    tables.insert(tables.end(), head.begin(), head.end());
  }
  const SideFormat f = side.resolved({.codec = CodecId::RopeBlocks, .bits = 2});
  const PageCodec& codec = page_codec(f.codec);
  std::vector<std::byte> page(codec.bytes(f, side.shape));
  EXPECT_EQ(8.0 * page.size() / (heads * 64.0 * d), 2 + 16.0 / d);
  codec.encode({f, side.shape, tables}, side.view(), {}, page.data());
  double sum = 0;
  for (const float e : energies) sum += e;
  double error = 0, plain_error = 0;
  const SideFormat plain = side.resolved({.codec = CodecId::Gauss, .bits = 2});
  const std::vector<float> even = side.decode(plain, side.encode(plain));
  for (int h = 0; h < heads; h++) {
    std::vector<float> got(64 * d);
    codec.decode({f, side.shape, tables}, page.data(), h, got.data());
    for (int t = 0; t < kPageTokens; t++) {
      double whitened = 0, square = 0, levels = 0;
      std::vector<double> spread(d), l(d);
      for (int c = 0; c < d; c++) {
        spread[c] = std::sqrt(energies[c] / sum * d);
        whitened += std::pow(side.at(h, t, c) / spread[c], 2), square += std::pow(side.at(h, t, c), 2);
      }
      const double rms = std::sqrt(whitened / d);
      for (int c = 0; c < d; c++) {
        const int bits = static_cast<int>(tables[c]);
        double nearest = 1e9;
        for (int code = 0; code < 1 << bits; code++) {
          const double level = gauss::level(bits, code), z = side.at(h, t, c) / spread[c] / rms;
          if (std::fabs(z - level) < std::fabs(z - nearest)) nearest = level;
        }
        l[c] = nearest * spread[c], levels += l[c] * l[c];
      }
      const double scale = half(std::sqrt(square / levels));
      for (int c = 0; c < d; c++) {
        EXPECT_NEAR(got[t * d + c], scale * l[c], 2e-3 * scale * spread[c]) << t << " " << c;
        error += std::pow(got[t * d + c] - side.at(h, t, c), 2);
        plain_error += std::pow(even[side.index(h, t, c)] - side.at(h, t, c), 2);
      }
    }
  }
  EXPECT_LT(error, 0.6 * plain_error) << "on channels of unequal energy";
}

}  // namespace
}  // namespace kv2
