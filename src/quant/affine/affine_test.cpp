// SPDX-License-Identifier: Apache-2.0
// The codec affine against a model of its recipe in double precision, written from docs/page-format.md: bits,
// groups, offsets, ranges; what int2 shares with it; the feedback coder's codes through it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "kv2/error.h"
#include "quant/feedback/feedback.h"
#include "quant/feedback/test_metric.h"
#include "quant/int2/encode_head.h"
#include "quant/page_codec.h"

namespace kv2 {
namespace {

struct World {
  KvShape shape;
  std::vector<bf16> rows;  // [heads][64][d]

  World(int heads, int d, unsigned seed, float mean = 0.7f) : shape{1, heads, heads, d} {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0, 1);
    for (int i = 0; i < heads * kPageTokens * d; i++)
      rows.push_back(to_bf16(normal(rng) * (i % d == 3 ? 4.0f : 1.0f) + mean * static_cast<float>(i % 3)));
  }
  PageRows view() const { return {rows.data(), static_cast<size_t>(kPageTokens) * shape.head_dim}; }
  double at(int head, int token, int channel) const {
    return to_float(rows[(static_cast<size_t>(head) * kPageTokens + token) * shape.head_dim + channel]);
  }
};

double half(double x) {
  return to_float(to_fp16(static_cast<float>(x)));
}

/// x̂ of one group by the recipe, in double, and the step, by which a code may differ where a value lies on a
/// border.
std::vector<double> model_group(const std::vector<double>& x, const SideFormat& f, RangeRule range,
                                double& step) {
  const double top = (1 << f.bits) - 1, n = static_cast<double>(x.size());
  double low = x[0], high = x[0], most = 0, sum = 0;
  for (const double v : x)
    low = std::min(low, v), high = std::max(high, v), most = std::max(most, std::fabs(v)), sum += v;
  double scale, offset, mean = sum / n, square = 0;
  for (const double v : x) square += (v - mean) * (v - mean);
  const double sigma = std::sqrt(square / n + 1e-8);
  if (f.offset == OffsetKind::Centred) {
    scale = half(2 * most / top), offset = -top / 2 * scale;
  } else if (f.offset == OffsetKind::Symmetric) {
    const double levels = 1 << (f.bits - 1);
    scale = half(most / (levels - 1)), offset = -levels * scale;
  } else if (range == RangeRule::LloydMax) {
    scale = half(3.0191171 / 3 * 1.16 * sigma), offset = half(mean - 1.5 * scale);
  } else {
    scale = half((high - low) / top), offset = half(low);
    if (range == RangeRule::IntegerZero) offset = half(std::floor(low / scale + 0.5) * scale);
  }
  step = scale;
  std::vector<double> out;
  for (const double v : x) {
    double code = std::min(std::max(std::floor((v - offset) / scale + 0.5), 0.0), top);
    if (range == RangeRule::LloydMax) {
      const double z = (v - mean) / sigma;
      code = (z > -0.98106527) + (z > 0) + (z > 0.98106527);
    }
    out.push_back(scale * code + offset);
  }
  return out;
}

std::vector<double> clipped(const World& w, int head, int token, double ratio) {
  std::vector<double> x, magnitude;
  for (int c = 0; c < w.shape.head_dim; c++)
    x.push_back(w.at(head, token, c)), magnitude.push_back(std::fabs(x[c]));
  if (ratio >= 1) return x;
  std::sort(magnitude.begin(), magnitude.end());
  const double t =
      magnitude[std::min<size_t>(static_cast<size_t>(ratio * static_cast<double>(x.size())), x.size() - 1)];
  for (double& v : x) v = std::min(std::max(v, -t), t);
  return x;
}

SideFormat resolved(SideFormat f, int d) {
  return page_codec(f.codec).resolve(f, d);
}

void expect_model(const World& w, SideFormat f, double clip, RangeRule range) {
  const PageCodec& codec = page_codec(CodecId::Affine);
  f = resolved(f, w.shape.head_dim);
  std::vector<std::byte> page(codec.bytes(f, w.shape));
  const Coder coder{.group = f.group, .clip_index = clip_index(clip, w.shape.head_dim), .range = range};
  codec.encode({f, w.shape}, w.view(), coder, page.data());
  std::vector<float> got(static_cast<size_t>(kPageTokens) * w.shape.head_dim);
  int on_a_border = 0;
  for (int h = 0; h < w.shape.n_kv_heads; h++) {
    codec.decode({f, w.shape}, page.data(), h, got.data());
    for (int t = 0; t < kPageTokens; t++) {
      const std::vector<double> x = clipped(w, h, t, clip);
      for (int g = 0; g < w.shape.head_dim / f.group; g++) {
        double step = 0;
        const std::vector<double> group(x.begin() + g * f.group, x.begin() + (g + 1) * f.group);
        const std::vector<double> want = model_group(group, f, range, step);
        for (int i = 0; i < f.group; i++) {
          const double have = got[t * w.shape.head_dim + g * f.group + i], scale = std::fabs(have) + step;
          if (std::fabs(have - want[i]) <= 1e-6 * scale) continue;
          ASSERT_LE(std::fabs(have - want[i]), step * 1.01) << describe(f) << " head " << h << " token " << t;
          on_a_border++;
        }
      }
    }
  }
  EXPECT_LE(on_a_border, static_cast<int>(got.size()) / 500 + 2) << describe(f);
}

TEST(Affine, IsItsModelInDoublePrecision) {
  for (const int d : {32, 64, 96, 128}) {
    const World w(3, d, static_cast<unsigned>(d));
    for (const int bits : {1, 2, 3, 4, 8}) {
      for (const int group : {0, 32, d / 2}) {
        const SideFormat f{.codec = CodecId::Affine, .bits = bits, .group = group};
        expect_model(w, f, 1.0, RangeRule::MinMax);
        expect_model(w, f, 0.9, RangeRule::MinMax);
        expect_model(w, f, 1.0, RangeRule::IntegerZero);
        if (bits == 2) expect_model(w, f, 0.96, RangeRule::LloydMax);
        SideFormat alone = f;
        alone.offset = OffsetKind::Centred;
        expect_model(w, alone, 0.96, RangeRule::MinMax);
        alone.offset = OffsetKind::Symmetric;
        if (bits > 1) expect_model(w, alone, 1.0, RangeRule::MinMax);
      }
    }
  }
}

// Golden values of the fact sheets: integer and float zero points of one group.
TEST(Affine, KnownGroups) {
  const auto decode = [](const std::vector<float>& x, OffsetKind offset, RangeRule range) {
    World w(1, 4, 1);
    for (size_t i = 0; i < w.rows.size(); i++) w.rows[i] = to_bf16(x[i % 4]);
    const SideFormat f{.codec = CodecId::Affine, .bits = 2, .group = 4, .offset = offset};
    const PageCodec& codec = page_codec(CodecId::Affine);
    std::vector<std::byte> page(codec.bytes(f, w.shape));
    codec.encode({f, w.shape}, w.view(), {.group = 4, .range = range}, page.data());
    std::vector<float> rows(64 * 4);
    codec.decode({f, w.shape}, page.data(), 0, rows.data());
    return std::vector<float>(rows.end() - 4, rows.end());
  };
  const auto near = [](const std::vector<float>& got, const std::vector<float>& want) {
    for (size_t i = 0; i < 4; i++) EXPECT_NEAR(got[i], want[i], 4e-3) << i;
  };
  near(decode({-0.9f, -0.2f, 0.1f, 0.6f}, OffsetKind::Stored, RangeRule::IntegerZero), {-1, 0, 0, 0.5f});
  near(decode({-0.7f, -0.2f, 0.1f, 0.6f}, OffsetKind::Stored, RangeRule::IntegerZero),
       {-0.8667f, 0, 0, 0.4333f});
  near(decode({0.2f, 0.3f, 0.7f, 1.1f}, OffsetKind::Stored, RangeRule::IntegerZero),
       {0.3f, 0.3f, 0.6f, 1.2f});
  near(decode({1, 2, 3, 4}, OffsetKind::Stored, RangeRule::IntegerZero), {1, 2, 3, 4});
  near(decode({-2, -0.9f, 0.4f, 1}, OffsetKind::Symmetric, RangeRule::MinMax), {-2, 0, 0, 2});
  near(decode({-3, -1, 1, 3}, OffsetKind::Centred, RangeRule::MinMax), {-3, -1, 1, 3});
  near(decode({5, 5, 5, 5}, OffsetKind::Stored, RangeRule::MinMax), {5, 5, 5, 5});
  near(decode({0, 0, 0, 0}, OffsetKind::Centred, RangeRule::MinMax), {0, 0, 0, 0});
}

TEST(Affine, TwoBitsWithAnOffsetAreInt2) {
  const World w(2, 64, 9);
  const SideFormat f = resolved({.codec = CodecId::Affine, .bits = 2, .group = 32}, 64);
  for (const RangeRule range : {RangeRule::MinMax, RangeRule::IntegerZero, RangeRule::LloydMax}) {
    const Coder coder{.group = 32, .clip_index = clip_index(0.92, 64), .range = range};
    const PageCodec& codec = page_codec(CodecId::Affine);
    std::vector<std::byte> page(codec.bytes(f, w.shape)), want;
    codec.encode({f, w.shape}, w.view(), coder, page.data());
    for (int h = 0; h < 2; h++) {
      std::vector<uint8_t> codes(64 * 16);
      std::vector<fp16> params(64 * 2 * 2);
      (h == 0 ? int2::encode_head_reference : int2::encode_head)(w.view().head(h), 64, 64, coder, h,
                                                                 codes.data(), params.data());
      const auto* c = reinterpret_cast<const std::byte*>(codes.data());
      const auto* p = reinterpret_cast<const std::byte*>(params.data());
      want.insert(want.end(), c, c + codes.size());
      want.insert(want.end(), p, p + params.size() * 2);
    }
    EXPECT_EQ(page, want) << static_cast<int>(range);
  }
}

TEST(Affine, FeedbackCodesAreThoseOfTheCoder) {
  std::mt19937 rng(4);
  for (const int bits : {1, 2, 3, 4}) {
    for (const OffsetKind offset : {OffsetKind::Stored, OffsetKind::Centred}) {
      const int d = 64, group = bits == 3 ? 32 : 64;
      const World w(2, d, 70 + static_cast<unsigned>(bits), 0.2f);
      const testing::TestMetric metric(d, group, rng, 4.0, true);
      FeedbackFactors both = metric.factors;
      for (auto member : {&FeedbackFactors::f, &FeedbackFactors::weight, &FeedbackFactors::ones}) {
        const std::vector<float> once = both.*member;
        (both.*member).insert((both.*member).end(), once.begin(), once.end());
      }
      const SideFormat f =
          resolved({.codec = CodecId::Affine, .bits = bits, .group = group, .offset = offset}, d);
      const Coder coder{.kind = CoderKind::Feedback,
                        .group = group,
                        .tables = both.tables(),
                        .search = {.steps = {0.95f, 1.2f}, .n_steps = 2, .refits = 1}};
      const PageCodec& codec = page_codec(CodecId::Affine);
      std::vector<std::byte> page(codec.bytes(f, w.shape));
      codec.encode({f, w.shape}, w.view(), coder, page.data());
      std::vector<float> rows(64 * d);
      codec.decode({f, w.shape}, page.data(), 1, rows.data());
      const feedback::Options options = feedback::options_of(d, coder, bits, offset);
      double error = 0, rounded = 0;
      for (int t = 0; t < kPageTokens; t++) {
        std::vector<uint8_t> codes(d);
        std::vector<fp16> scale(d / group), zero(d / group);
        feedback::encode_vector(w.view().head(1) + t * d, options, metric.factors.tables(), codes.data(),
                                scale.data(), zero.data());
        std::vector<double> e(d);
        for (int i = 0; i < d; i++) {
          const double s = to_float(scale[i / group]);
          const double o =
              offset == OffsetKind::Stored ? to_float(zero[i / group]) : -0.5 * options.top() * s;
          ASSERT_EQ(rows[t * d + i], static_cast<float>(s * codes[i] + o)) << bits << " bits, token " << t;
          e[i] = w.at(1, t, i) - rows[t * d + i];
        }
        error += metric.error(e);
      }
      codec.encode({f, w.shape}, w.view(), {.group = group}, page.data());
      codec.decode({f, w.shape}, page.data(), 1, rows.data());
      for (int t = 0; t < kPageTokens; t++) {
        std::vector<double> e(d);
        for (int i = 0; i < d; i++) e[i] = w.at(1, t, i) - rows[t * d + i];
        rounded += metric.error(e);
      }
      EXPECT_LT(error, rounded * 0.8) << bits << " bits: feedback must pay";
    }
  }
}

TEST(Affine, SizesAndRefusals) {
  const PageCodec& codec = page_codec(CodecId::Affine);
  const KvShape shape{1, 6, 3, 64};
  const auto bits = [&](SideFormat f) {
    f = resolved(f, 64);
    return 8.0 * static_cast<double>(page_codec(f.codec).bytes(f, shape)) / (3 * 64 * 64);
  };
  EXPECT_EQ(bits({.codec = CodecId::Affine, .bits = 3}), 3.5);
  EXPECT_EQ(bits({.codec = CodecId::Affine, .bits = 2, .offset = OffsetKind::Centred}), 2.25);
  EXPECT_EQ(bits({.codec = CodecId::Affine, .bits = 8, .group = 32}), 9.0);
  EXPECT_EQ(bits({.codec = CodecId::Bf16}), 16.0);
  const auto refusal = [&](SideFormat f, int d) -> std::string {
    try {
      codec.resolve(f, d);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(refusal({.bits = 5}, 64).find("1, 2, 3, 4 or 8"), std::string::npos);
  EXPECT_NE(refusal({.bits = 3}, 68).find("multiple of 8"), std::string::npos);
  EXPECT_NE(refusal({.bits = 2, .group = 48}, 64).find("groups that do: 4, 8, 16, 32, 64"),
            std::string::npos);
  EXPECT_NE(refusal({.bits = 1, .offset = OffsetKind::Symmetric}, 64).find("2, 3, 4 and 8 do"),
            std::string::npos);
}

TEST(Bf16Codec, KeepsTheRows) {
  const World w(2, 32, 5);
  const PageCodec& codec = page_codec(CodecId::Bf16);
  const SideFormat f = resolved({.codec = CodecId::Bf16}, 32);
  std::vector<std::byte> page(codec.bytes(f, w.shape));
  codec.encode({f, w.shape}, w.view(), {}, page.data());
  std::vector<float> rows(64 * 32);
  codec.decode({f, w.shape}, page.data(), 1, rows.data());
  for (size_t i = 0; i < rows.size(); i++) ASSERT_EQ(rows[i], to_float(w.rows[64 * 32 + i]));
}

}  // namespace
}  // namespace kv2
