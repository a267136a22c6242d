// SPDX-License-Identifier: Apache-2.0
// fit_method: which statistic each method is fitted from, and refusals that name the next step.
#include "engine/transforms.h"

#include <gtest/gtest.h>

#include <random>

#include "kv2/error.h"
#include "quant/feedback/factors.h"
#include "quant/rotation.h"

namespace kv2 {
namespace {

constexpr KvShape kShape{.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16};

/// Random covariances, every one different.
Calibration random_calibration() {
  std::mt19937 random(5);
  std::normal_distribution<float> noise;
  const int d = kShape.head_dim;
  const auto covariance = [&] {
    std::vector<float> all;
    for (int h = 0; h < kShape.n_kv_heads; h++) {
      std::vector<float> a(d * d), c(d * d);
      for (float& x : a) x = noise(random);
      for (int i = 0; i < d; i++)
        for (int j = 0; j < d; j++)
          for (int k = 0; k < d; k++) c[i * d + j] += a[i * d + k] * a[j * d + k];
      all.insert(all.end(), c.begin(), c.end());
    }
    return all;
  };
  const auto means = [&] {
    std::vector<float> all(kShape.n_kv_heads * d);
    for (float& x : all) x = 0.3f * noise(random);
    return all;
  };
  Calibration out;
  out.n_kv_heads = kShape.n_kv_heads;
  out.head_dim = d;
  for (int i = 0; i < kShape.n_layers; i++)
    out.layers.push_back({.c_q = covariance(),
                          .c_s = covariance(),
                          .c_s_energy = covariance(),
                          .k_cov = covariance(),
                          .k_mean = means(),
                          .v_cov = covariance(),
                          .metric_v = covariance(),
                          .clip_k = i == 0 ? 0.9f : 0.8f,
                          .clip_v = i == 0 ? 0.7f : 0.6f});
  for (LayerCalibration& c : out.layers)  // a second moment holds its mean
    for (int h = 0; h < kShape.n_kv_heads; h++)
      for (int i = 0; i < d * d; i++)
        c.k_cov[h * d * d + i] += c.k_mean[h * d + i / d] * c.k_mean[h * d + i % d];
  return out;
}

std::vector<float> encode_of(const std::vector<float>& covariance, const Method& m) {
  return calibrated_transform(covariance, kShape.n_kv_heads, kShape.head_dim, m.recipe, m.sharing).encode;
}

TEST(FitMethod, Bf16AndNaiveNeedNoTransform) {
  EXPECT_TRUE(fit_method(CacheSpec::parse("bf16"), kShape, nullptr).transforms.empty());
  const FittedMethod naive = fit_method(CacheSpec::parse("naive2"), kShape, nullptr);
  EXPECT_TRUE(naive.transforms.empty());
  EXPECT_EQ(naive.clips, (std::vector<std::pair<float, float>>(2, {1.0f, 1.0f})));
}

TEST(FitMethod, QuarotIsTheHadamardMatrixForBoth) {
  const FittedMethod f = fit_method(CacheSpec::parse("quarot2:clip-k=0.9"), kShape, nullptr);
  ASSERT_EQ(f.transforms.size(), 2u);
  const auto h = hadamard_transform(2, 16).encode;
  EXPECT_EQ(f.transforms[1].k.encode, h);
  EXPECT_EQ(f.transforms[1].v.encode, h);
  EXPECT_EQ(f.clips[0].first, 0.9f);
}

TEST(FitMethod, OscarRotatesKeysByQueriesAndValuesByTheChosenStatistic) {
  const Calibration calibration = random_calibration();
  CacheSpec spec = CacheSpec::parse("oscar2");
  const auto& layer = calibration.layers[1];
  for (const auto& [target, statistic] : {std::pair{ValueTarget::AttentionOutput, &layer.c_s},
                                          {ValueTarget::EnergyWeighted, &layer.c_s_energy},
                                          {ValueTarget::SelfCovariance, &layer.v_cov}}) {
    spec.method.value_target = target;
    const FittedMethod f = fit_method(spec, kShape, &calibration);
    ASSERT_EQ(f.transforms.size(), 2u);
    EXPECT_EQ(f.transforms[1].k.encode, encode_of(layer.c_q, spec.method));
    EXPECT_EQ(f.transforms[1].v.encode, encode_of(*statistic, spec.method));
    EXPECT_LT(inverse_error(f.transforms[1].k), 1e-5);
  }
}

TEST(FitMethod, Kv2CodesKeysUnderTheQueriesAndValuesUnderTheOutputProjection) {
  const Calibration calibration = random_calibration();
  const auto expect_factors = [](const FeedbackFactors& got, const FeedbackFactors& want) {
    EXPECT_EQ(got.f, want.f);
    EXPECT_EQ(got.weight, want.weight);
    EXPECT_EQ(got.ones, want.ones);
  };
  for (const char* method :
       {"kv2:damp=0.1,group=4", "kv2:feedback=k", "kv2:feedback=v,centre=off,whiten-v=0"}) {
    const CacheSpec spec = CacheSpec::parse(method);
    const FittedMethod f = fit_method(spec, kShape, &calibration);
    ASSERT_EQ(f.factors.size(), 2u);
    ASSERT_EQ(f.transforms.size(), 2u);
    const auto& layer = calibration.layers[1];
    const int group = spec.method.k.group ? spec.method.k.group : 16;
    const FeedbackFactors k = fit_feedback(layer.c_q, f.transforms[1].k, group, spec.method.damp);
    const FeedbackFactors v = fit_feedback(layer.metric_v, f.transforms[1].v, group, spec.method.damp);
    expect_factors(f.factors[1].k, spec.method.coder_k() == CoderKind::Feedback ? k : FeedbackFactors{});
    expect_factors(f.factors[1].v, spec.method.coder_v() == CoderKind::Feedback ? v : FeedbackFactors{});
  }
  EXPECT_TRUE(fit_method(CacheSpec::parse("oscar2"), kShape, &calibration).factors.empty());
}

/// What a whitened transform makes of rows with this covariance, one head: no correlation, and variances
/// lambda / (lambda + 5 %) in units of the mean eigenvalue, ascending.
void expect_white(const std::vector<double>& covariance, const float* encode, int d) {
  double mean_variance = 0;
  for (int i = 0; i < d; i++) mean_variance += covariance[i * d + i] / d;
  double last = -1e-4;
  for (int j = 0; j < d; j++)
    for (int l = 0; l <= j; l++) {
      double sum = 0;
      for (int a = 0; a < d; a++)
        for (int b = 0; b < d; b++) sum += covariance[a * d + b] * encode[a * d + j] * encode[b * d + l];
      sum /= mean_variance;
      if (l < j) {
        EXPECT_NEAR(sum, 0, 1e-4);
        continue;
      }
      EXPECT_GT(sum, last - 1e-4);
      EXPECT_LT(sum, 1);
      last = sum;
    }
  EXPECT_GT(last, 0.95) << "the largest eigenvalue is far above the floor";
}

// Rows as stored, (x - mean)·encode, have the covariance that the exponent asks for, and q' = q·decode' meets
// keys so that q·k comes out up to the mean's share.
TEST(FitMethod, RowsCentredAndWhitened) {
  const Calibration calibration = random_calibration();
  const LayerCalibration& c = calibration.layers[1];
  const int d = kShape.head_dim;
  for (const char* method : {"kv2:centre=k,whiten=0", "kv2:centre=off,whiten-k=1,whiten-v=0,rotation=u",
                             "kv2:centre=k,whiten=1,rotation=u", "kv2:centre=k,whiten=0.5",
                             "oscar2:whiten=1,rotation=u", "oscar2:whiten-v=1,rotation=u"}) {
    SCOPED_TRACE(method);
    const CacheSpec spec = CacheSpec::parse(method);
    const Method& m = spec.method;
    const FittedMethod f = fit_method(spec, kShape, &calibration);
    const auto& [k, v] = f.transforms[1];
    const bool centred = m.centring == Centring::Keys;
    EXPECT_EQ(k.mean, centred ? c.k_mean : std::vector<float>{});
    EXPECT_TRUE(v.mean.empty());
    EXPECT_LT(inverse_error(k), 1e-4);
    EXPECT_LT(inverse_error(v), 1e-4);
    if (m.whiten_k == 0) {
      EXPECT_EQ(k.encode, encode_of(c.c_q, m));
    }
    if (m.whiten_v == 0) {
      EXPECT_EQ(v.encode, encode_of(c.c_s, m));
    }
    for (int head = 0; head < kShape.n_kv_heads; head++) {
      std::vector<double> keys(d * d), values(d * d);
      for (int i = 0; i < d * d; i++) {
        const float* mean = c.k_mean.data() + head * d;
        const double common = centred ? double{mean[i / d]} * mean[i % d] : 0;
        keys[i] = double{c.k_cov[head * d * d + i]} - common;
        values[i] = c.v_cov[head * d * d + i];
      }
      if (m.whiten_k == 1) expect_white(keys, k.encode.data() + head * d * d, d);
      if (m.whiten_v == 1) expect_white(values, v.encode.data() + head * d * d, d);
    }
  }
}

TEST(FitMethod, ClipsComeFromTheFileUnlessTheMethodHasItsOwn) {
  const Calibration calibration = random_calibration();
  CacheSpec spec = CacheSpec::parse("oscar2");
  spec.method.clip_k = std::nullopt;
  spec.method.clip_v = 0.5f;
  const FittedMethod f = fit_method(spec, kShape, &calibration);
  EXPECT_EQ(f.clips, (std::vector<std::pair<float, float>>{{0.9f, 0.5f}, {0.8f, 0.5f}}));
}

void expect_error(ErrorCode code, const char* part, const CacheSpec& spec, const Calibration* calibration) {
  try {
    (void)fit_method(spec, kShape, calibration);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(FitMethod, RefusesWithTheNextStep) {
  const CacheSpec spec = CacheSpec::parse("oscar2");
  expect_error(ErrorCode::BadArgument, "kv2 calibrate MODEL", spec, nullptr);
  Calibration other = random_calibration();
  other.layers.pop_back();
  expect_error(ErrorCode::Mismatch, "1 layers", spec, &other);
  other = random_calibration();
  other.layers[1].c_s.pop_back();
  expect_error(ErrorCode::BadFile, "layer 1", spec, &other);
  other = random_calibration();
  other.layers[1].metric_v.clear();
  expect_error(ErrorCode::BadFile, "layer 1: metric_v", CacheSpec::parse("kv2"), &other);
  expect_error(ErrorCode::BadArgument, "kv2 calibrate MODEL", CacheSpec::parse("kv2"), nullptr);
}

}  // namespace
}  // namespace kv2
