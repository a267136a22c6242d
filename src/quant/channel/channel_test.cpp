// SPDX-License-Identifier: Apache-2.0
// The codec channel against models of KIVI, OScaR, OTT and Kitty in double precision, written from their
// recipes, and what OScaR says of token norms.
#include <algorithm>
#include <numeric>

#include "kv2/error.h"
#include "quant/test_side.h"

namespace kv2 {
namespace {

using testing::BorderCount;
using testing::half;
using testing::TestSide;

SideFormat channel(int bits, int group) {
  return {.codec = CodecId::Channel, .bits = bits, .group = group};
}

struct Group {
  double scale, offset;
  std::vector<double> decoded;
};

/// KIVI's: s = (max − min)/(2^b − 1), the offset the smallest value itself; or OScaR's integer zero.
Group model_group(const std::vector<double>& x, int bits, RangeRule rule) {
  const double low = *std::min_element(x.begin(), x.end()), high = *std::max_element(x.begin(), x.end());
  const double top = (1 << bits) - 1;
  Group g{half((high - low) / top), half(low), {}};
  if (rule == RangeRule::IntegerZero) g.offset = half(std::floor(low / g.scale + 0.5) * g.scale);
  for (const double v : x) {
    const double code = std::floor((v - g.offset) / g.scale + 0.5);
    g.decoded.push_back(g.scale * std::clamp(code, 0.0, top) + g.offset);
  }
  return g;
}

/// x [64] of one channel -> decoded and the step at every token.
void model_channel(const std::vector<double>& x, int bits, int group, RangeRule rule,
                   std::vector<double>& decoded, std::vector<double>& step) {
  decoded.clear(), step.clear();
  for (int first = 0; first < kPageTokens; first += group) {
    const Group g = model_group({x.begin() + first, x.begin() + first + group}, bits, rule);
    decoded.insert(decoded.end(), g.decoded.begin(), g.decoded.end());
    step.insert(step.end(), group, g.scale);
  }
}

TEST(Channel, IsKiviOfKeys) {
  for (const int d : {32, 64, 80, 128}) {
    const TestSide side(3, d, static_cast<unsigned>(d));
    for (const int bits : {1, 2, 3, 4, 8}) {
      for (const int group : {32, 64}) {
        for (const RangeRule rule : {RangeRule::MinMax, RangeRule::IntegerZero}) {
          const SideFormat f = side.resolved(channel(bits, group));
          const std::vector<float> got = side.decode(f, side.encode(f, {.range = rule}));
          BorderCount borders;
          std::vector<double> decoded, step;
          for (int h = 0; h < 3; h++)
            for (int c = 0; c < d; c++) {
              std::vector<double> x;
              for (int t = 0; t < kPageTokens; t++) x.push_back(side.at(h, t, c));
              model_channel(x, bits, group, rule, decoded, step);
              for (int t = 0; t < kPageTokens; t++)
                borders.expect(got[side.index(h, t, c)], decoded[t], step[t]);
            }
        }
      }
    }
  }
}

TEST(Channel, WithNormsIsOScaR) {
  for (const int heads : {1, 3}) {
    const int d = 64;
    const TestSide side(heads, d, 5);
    for (const RangeRule rule : {RangeRule::MinMax, RangeRule::IntegerZero}) {
      SideFormat f = channel(2, 32);
      f.norm = TokenNorm::AllHeads;
      f = side.resolved(f);
      EXPECT_EQ(page_codec(f.codec).bytes(f, side.shape), static_cast<size_t>(heads * d * (16 + 8) + 64 * 4));
      const std::vector<float> got = side.decode(f, side.encode(f, {.range = rule}));
      std::vector<double> norm(kPageTokens, 0.0), decoded, step;
      for (int t = 0; t < kPageTokens; t++) {  // one norm per token over all heads
        for (int h = 0; h < heads; h++)
          for (int c = 0; c < d; c++) norm[t] += side.at(h, t, c) * side.at(h, t, c);
        norm[t] = std::sqrt(norm[t]);
      }
      BorderCount borders;
      for (int h = 0; h < heads; h++)
        for (int c = 0; c < d; c++) {
          std::vector<double> x;
          for (int t = 0; t < kPageTokens; t++) x.push_back(side.at(h, t, c) / norm[t]);
          model_channel(x, 2, 32, rule, decoded, step);
          for (int t = 0; t < kPageTokens; t++)
            borders.expect(got[side.index(h, t, c)], decoded[t] * norm[t], step[t] * norm[t]);
        }
    }
  }
}

/// Σ|x − x̂|² ÷ Σ|x|² of token t over all heads.
double relative_error(const TestSide& side, const std::vector<float>& got, int t) {
  double error = 0, energy = 0;
  for (int h = 0; h < side.shape.n_kv_heads; h++)
    for (int c = 0; c < side.shape.head_dim; c++) {
      const double x = side.at(h, t, c);
      error += (x - got[side.index(h, t, c)]) * (x - got[side.index(h, t, c)]);
      energy += x * x;
    }
  return error / energy;
}

// Token norm imbalance: in one group the token of small norm pays for the range of the others. Any two tokens
// u, v of a group have Σ_j range_j² >= (|u| − |v|)², so without norms the error of a group is at least a
// share of that.
TEST(Channel, NormsSaveTheTokensOfSmallNorm) {
  const TestSide side(3, 64, 6, 0.0f);
  SideFormat with = side.resolved(channel(2, 32));
  const SideFormat without = with;
  with.norm = TokenNorm::AllHeads;
  const std::vector<float> scaled = side.decode(with, side.encode(with));
  const std::vector<float> plain = side.decode(without, side.encode(without));
  for (int t = 5; t < kPageTokens; t += 13) {
    EXPECT_GT(relative_error(side, plain, t), 1.0) << t;
    EXPECT_LT(relative_error(side, scaled, t), 0.35) << t;
  }
  double range = 0;  // of the first group, all channels
  std::vector<double> norms;
  for (int h = 0; h < 3; h++)
    for (int c = 0; c < 64; c++) {
      double low = 1e9, high = -1e9;
      for (int t = 0; t < 32; t++)
        low = std::min(low, side.at(h, t, c)), high = std::max(high, side.at(h, t, c));
      range += (high - low) * (high - low);
    }
  for (int t = 0; t < 32; t++) {
    double square = 0;
    for (int h = 0; h < 3; h++)
      for (int c = 0; c < 64; c++) square += side.at(h, t, c) * side.at(h, t, c);
    norms.push_back(std::sqrt(square));
  }
  const auto [least, most] = std::minmax_element(norms.begin(), norms.end());
  EXPECT_GE(range, (*most - *least) * (*most - *least));
}

TEST(Channel, KeptTokensStayAndTheOthersSeeTheMeanInTheirPlace) {
  const int d = 64, heads = 3;
  const TestSide side(heads, d, 7);
  for (const int kept : {1, 3, 8}) {
    SideFormat f = channel(2, 32);
    f.kept = kept;
    f = side.resolved(f);
    std::vector<double> magnitude(kPageTokens, 0.0);
    for (int t = 0; t < kPageTokens; t++)
      for (int h = 0; h < heads; h++)
        for (int c = 0; c < d; c++) magnitude[t] += std::fabs(side.at(h, t, c));
    std::vector<int> order(kPageTokens);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int a, int b) { return magnitude[a] < magnitude[b]; });
    const std::vector<int> out(order.begin(), order.begin() + kept);
    const auto is_kept = [&](int t) { return std::find(out.begin(), out.end(), t) != out.end(); };
    const std::vector<float> got = side.decode(f, side.encode(f));
    BorderCount borders;
    std::vector<double> decoded, step;
    for (int h = 0; h < heads; h++)
      for (int c = 0; c < d; c++) {
        std::vector<double> x;
        double mean = 0;
        for (int t = 0; t < kPageTokens; t++) mean += side.at(h, t, c) / kPageTokens;
        for (int t = 0; t < kPageTokens; t++) x.push_back(is_kept(t) ? mean : side.at(h, t, c));
        model_channel(x, 2, 32, RangeRule::MinMax, decoded, step);
        for (int t = 0; t < kPageTokens; t++)
          borders.expect(got[side.index(h, t, c)], is_kept(t) ? side.at(h, t, c) : decoded[t], step[t]);
      }
    EXPECT_NEAR(8.0 * page_codec(f.codec).bytes(f, side.shape) / (heads * 64 * d), 3 + 16.0 * kept / 64,
                0.02);
  }
}

TEST(Channel, TheStrongestChannelsHaveFourBits) {
  const int d = 64, heads = 2;
  const TestSide side(heads, d, 8);
  for (const int wide : {8, 16, 64}) {
    SideFormat f = channel(2, 64);
    f.wide = wide;
    f = side.resolved(f);
    const std::vector<float> got = side.decode(f, side.encode(f));
    BorderCount borders;
    std::vector<double> decoded, step;
    for (int h = 0; h < heads; h++) {
      std::vector<double> magnitude(d, 0.0);
      for (int c = 0; c < d; c++)
        for (int t = 0; t < kPageTokens; t++) magnitude[c] += std::fabs(side.at(h, t, c));
      std::vector<double> sorted = magnitude;
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      for (int c = 0; c < d; c++) {
        std::vector<double> x;
        for (int t = 0; t < kPageTokens; t++) x.push_back(side.at(h, t, c));
        model_channel(x, magnitude[c] >= sorted[wide - 1] ? 4 : 2, 64, RangeRule::MinMax, decoded, step);
        for (int t = 0; t < kPageTokens; t++) borders.expect(got[side.index(h, t, c)], decoded[t], step[t]);
      }
    }
    // 2 bits, a pair of halves per channel and page, two more bits for the wide ones and their numbers.
    const double bits = 2 + 32.0 / 64 + 2.0 * wide / 64 + 16.0 * wide / 64 / 64;
    EXPECT_NEAR(8.0 * page_codec(f.codec).bytes(f, side.shape) / (heads * 64 * d), bits, 0.01);
  }
}

TEST(Channel, HardRowsStayFinite) {
  TestSide side(2, 32, 9);
  for (size_t i = 0; i < side.rows.size(); i += 5) {
    const float hard[] = {0.0f, -0.0f, 1e-39f, 3e38f, -3e38f, INFINITY, NAN, 1e20f};
    side.rows[i] = to_bf16(hard[i / 5 % 8]);
  }
  for (int t = 0; t < kPageTokens; t += 7)
    for (int h = 0; h < 2; h++)
      for (int c = 0; c < 32; c++) side.rows[side.index(h, t, c)] = to_bf16(0.0f);
  for (SideFormat f : {channel(2, 32), channel(4, 64)}) {
    for (const TokenNorm norm : {TokenNorm::Off, TokenNorm::AllHeads}) {
      f.norm = norm;
      f.kept = 2;
      const SideFormat r = side.resolved(f);
      const std::vector<std::byte> page = side.encode(r);
      EXPECT_EQ(page, side.encode(r)) << "every byte is written";
      for (const float x : side.decode(r, page)) ASSERT_FALSE(std::isnan(x));
    }
  }
}

TEST(Channel, RefusalsSayWhatFits) {
  const TestSide side(1, 64, 1);
  const auto refusal = [&](SideFormat f) -> std::string {
    try {
      side.resolved(f);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(refusal(channel(2, 48)).find("4, 8, 16, 32, 64"), std::string::npos);
  EXPECT_NE(refusal(channel(2, 128)).find("4, 8, 16, 32, 64"), std::string::npos);
  EXPECT_NE(refusal(channel(6, 32)).find("1, 2, 3, 4 or 8"), std::string::npos);
  SideFormat f = channel(3, 32);
  f.wide = 8;
  EXPECT_NE(refusal(f).find("beside others of 2"), std::string::npos);
  f = channel(2, 32);
  f.kept = 9;
  EXPECT_NE(refusal(f).find("0 to 8"), std::string::npos);
}

}  // namespace
}  // namespace kv2
