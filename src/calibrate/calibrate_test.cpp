// SPDX-License-Identifier: Apache-2.0
// calibrate() and sample_calibration_text() on a small random model: what they read, what they refuse, and
// that they are deterministic. The statistics themselves are tested in statistics_test.cpp, the clips in
// clip_search_test.cpp.
#include "calibrate/calibrate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "calibrate/clip_search.h"
#include "calibrate/sequence_walk.h"
#include "calibrate/tiny_model.h"
#include "calibrate/value_metric.h"
#include "kv2/error.h"

namespace kv2 {
namespace {

using testing::kTinyBos;
using testing::kTinyEos;
using testing::kTinyVocab;
using testing::random_tokens;
using testing::TinyModel;

CalibrateOptions small_options() {
  return {.n_tokens = 300, .n_held_out = 200, .window = 128, .n_threads = 2, .source = "a test"};
}

/// Sums the products of one layer's k, head by head, without chunks in mind.
struct NaiveKeys : Observer {
  std::vector<double> sum;
  int64_t n = 0;
  void on_layer(const LayerActivations& a) override {
    if (a.layer != 1) return;
    constexpr int kHeads = 2, kDim = 16;
    sum.resize(kHeads * kDim * kDim, 0.0);
    for (int t = 0; t < a.n_rows; t++)
      for (int h = 0; h < kHeads; h++)
        for (int r = 0; r < kDim; r++)
          for (int c = 0; c < kDim; c++)
            sum[(h * kDim + r) * kDim + c] +=
                double(a.k[(t * kHeads + h) * kDim + r]) * a.k[(t * kHeads + h) * kDim + c];
    n += a.n_rows;
  }
};

TEST(Calibrate, ReadsFreshWindowsAndFillsEverything) {
  TinyModel model(50);  // chunks of 50 in windows of 128
  const std::vector<int32_t> tokens = random_tokens(700, 1);
  CalibrateOptions options = small_options();
  options.positions = CalibrationPositions::Window;
  const Calibration c = calibrate(*model, tokens, options);
  EXPECT_EQ(c.model_fingerprint, model->fingerprint());
  EXPECT_EQ(c.n_kv_heads, 2);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.n_tokens, 300);
  EXPECT_EQ(c.text_hash.size(), 32u);
  EXPECT_EQ(c.notes.at("source"), "a test");
  EXPECT_EQ(c.notes.at("window"), "128");
  EXPECT_EQ(c.notes.at("tool").substr(0, 4), "kv2 ");
  ASSERT_EQ(c.layers.size(), 2u);

  NaiveKeys naive;  // windows of 128, 128 and 44 tokens, token by token
  SequenceWalk walk(*model, CacheSpec::parse("bf16"), nullptr, 128, 1);
  for (int i = 0; i < 300; i++) {
    if (i % 128 == 0) walk.restart(0);
    walk.advance(std::span(tokens).subspan(i, 1), {}, &naive);
  }
  ASSERT_EQ(naive.n, 300);
  for (size_t i = 0; i < naive.sum.size(); i++)
    ASSERT_NEAR(c.layers[1].k_cov[i], naive.sum[i] / 300, 1e-3) << i;
  for (const LayerCalibration& l : c.layers) {
    for (const auto* matrix :
         {&l.c_q, &l.c_s, &l.c_s_energy, &l.k_cov, &l.k_pre_cov, &l.v_cov, &l.metric_v}) {
      ASSERT_EQ(matrix->size(), 2u * 16 * 16);
      EXPECT_TRUE(std::all_of(matrix->begin(), matrix->end(), [](float x) { return std::isfinite(x); }));
      EXPECT_GT((*matrix)[0], 0.0f);
    }
    for (const auto* mean : {&l.k_mean, &l.k_pre_mean, &l.v_mean}) ASSERT_EQ(mean->size(), 2u * 16);
  }
}

// The positions change what queries and keys after RoPE give, and nothing else.
TEST(Calibrate, PositionsOfTheWindowOrAllOverTheContext) {
  TinyModel model(50);
  const std::vector<int32_t> tokens = random_tokens(700, 1);
  CalibrateOptions options = small_options();
  options.n_held_out = 0;
  const Calibration everywhere = calibrate(*model, tokens, options);
  options.positions = CalibrationPositions::Window;
  const Calibration window = calibrate(*model, tokens, options);
  EXPECT_EQ(everywhere.notes.at("positions"), "uniform");
  EXPECT_EQ(window.notes.at("positions"), "window");
  for (size_t l = 0; l < 2; l++) {
    const LayerCalibration &a = everywhere.layers[l], &b = window.layers[l];
    EXPECT_NE(a.c_q, b.c_q);
    EXPECT_NE(a.k_cov, b.k_cov);
    EXPECT_EQ(a.k_pre_cov, b.k_pre_cov);
    EXPECT_EQ(a.c_s, b.c_s);
    EXPECT_EQ(a.v_cov, b.v_cov);
    for (int head = 0; head < 2; head++) {  // a rotation keeps lengths: the traces agree
      double trace_a = 0, trace_b = 0;
      for (int i = 0; i < 16; i++) {
        trace_a += a.c_q[(head * 16 + i) * 16 + i];
        trace_b += b.c_q[(head * 16 + i) * 16 + i];
      }
      EXPECT_NEAR(trace_a / trace_b, 1, 1e-4);
    }
  }
}

// v·M·v' is the squared length of what v becomes behind W_o, summed over the query heads that read it.
TEST(Calibrate, MetricOfValuesIsWhatTheOutputProjectionDoes) {
  TinyModel model(64);
  const ModelConfig& config = model->config();
  const KvShape shape = config.kv_shape();
  const int d = shape.head_dim, width = shape.n_heads * d;
  ThreadTeam team(2);
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (int layer = 0; layer < shape.n_layers; layer++) {
    std::vector<float> w_o(static_cast<size_t>(config.hidden) * width), v(d);
    model->read_output_projection(layer, w_o.data());
    const std::vector<float> metric = value_metric(*model, layer, team);
    ASSERT_EQ(metric.size(), static_cast<size_t>(shape.n_kv_heads) * d * d);
    for (int head = 0; head < shape.n_kv_heads; head++) {
      for (float& x : v) x = normal(random);
      double want = 0, got = 0;
      for (int r = head * shape.q_per_kv(); r < (head + 1) * shape.q_per_kv(); r++) {
        for (int row = 0; row < config.hidden; row++) {
          double sum = 0;
          for (int i = 0; i < d; i++) sum += double{w_o[static_cast<size_t>(row) * width + r * d + i]} * v[i];
          want += sum * sum;
        }
      }
      for (int i = 0; i < d; i++)
        for (int j = 0; j < d; j++) got += double{metric[(head * d + i) * d + j]} * v[i] * v[j];
      EXPECT_NEAR(got, want, 1e-5 * want);
    }
  }
}

TEST(Calibrate, SearchesClipsOnHeldOutTokensAlone) {
  TinyModel model(128);
  std::vector<int32_t> tokens = random_tokens(500, 2);
  const Calibration a = calibrate(*model, tokens, small_options());
  const std::vector<float> ratios = ClipSearch::default_ratios();
  for (const LayerCalibration& l : a.layers) {
    EXPECT_NE(std::find(ratios.begin(), ratios.end(), l.clip_k), ratios.end()) << l.clip_k;
    EXPECT_NE(std::find(ratios.begin(), ratios.end(), l.clip_v), ratios.end()) << l.clip_v;
  }
  std::rotate(tokens.begin() + 300, tokens.begin() + 301,
              tokens.end());  // held-out tokens change, nothing else
  const Calibration b = calibrate(*model, tokens, small_options());
  EXPECT_EQ(a.layers[1].c_q, b.layers[1].c_q);
  EXPECT_EQ(a.layers[1].c_s_energy, b.layers[1].c_s_energy);
  EXPECT_NE(a.text_hash, b.text_hash);

  CalibrateOptions none = small_options();
  none.n_held_out = 0;
  const Calibration c = calibrate(*model, tokens, none);
  EXPECT_EQ(c.layers[0].clip_k, 0.96f);  // the published ratios
  EXPECT_EQ(c.layers[0].clip_v, 0.92f);
}

TEST(Calibrate, IsDeterministicForAnyNumberOfThreads) {
  TinyModel model(64);
  const std::vector<int32_t> tokens = random_tokens(500, 3);
  CalibrateOptions one = small_options(), three = small_options();
  one.n_threads = 1;
  three.n_threads = 3;
  const Calibration a = calibrate(*model, tokens, one), b = calibrate(*model, tokens, three);
  EXPECT_EQ(a.text_hash, b.text_hash);
  for (int l = 0; l < 2; l++) {
    EXPECT_EQ(a.layers[l].c_q, b.layers[l].c_q);
    EXPECT_EQ(a.layers[l].c_s, b.layers[l].c_s);
    EXPECT_EQ(a.layers[l].c_s_energy, b.layers[l].c_s_energy);
    EXPECT_EQ(a.layers[l].clip_k, b.layers[l].clip_k);
    EXPECT_EQ(a.layers[l].clip_v, b.layers[l].clip_v);
  }
}

std::string refusal(Model& model, const std::vector<int32_t>& tokens, const CalibrateOptions& options) {
  try {
    calibrate(model, tokens, options);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::BadArgument);
    return e.what();
  }
  return "";
}

TEST(Calibrate, SaysWhatIsMissing) {
  TinyModel model(64);
  const std::string too_short = refusal(*model, random_tokens(499, 4), small_options());
  EXPECT_NE(too_short.find("500"), std::string::npos) << too_short;
  EXPECT_NE(too_short.find("499"), std::string::npos) << too_short;
  std::vector<int32_t> tokens = random_tokens(500, 4);
  tokens[123] = kTinyVocab;
  const std::string outside = refusal(*model, tokens, small_options());
  EXPECT_NE(outside.find("123"), std::string::npos) << outside;
  CalibrateOptions wide = small_options();
  wide.window = testing::kTinyContext + 1;
  EXPECT_NE(refusal(*model, random_tokens(500, 4), wide).find("context"), std::string::npos);
  CalibrateOptions nothing = small_options();
  nothing.n_tokens = 0;
  EXPECT_NE(refusal(*model, random_tokens(500, 4), nothing), "");
}

TEST(SampleText, IsDeterministicAndOfTheRightLength) {
  TinyModel model(16);
  CalibrateOptions options{.n_tokens = 150, .n_held_out = 33, .window = 40, .seed = 5};
  const std::vector<int32_t> a = sample_calibration_text(*model, options);
  ASSERT_EQ(a.size(), 183u);
  EXPECT_TRUE(std::all_of(a.begin(), a.end(), [](int32_t t) { return t >= 0 && t < kTinyVocab; }));
  EXPECT_EQ(a, sample_calibration_text(*model, options));
  options.seed = 6;
  EXPECT_NE(a, sample_calibration_text(*model, options));
}

TEST(SampleText, StartsAnotherTextAfterTheEndOfOne) {
  TinyModel model(16);
  const CalibrateOptions options{.n_tokens = 900, .n_held_out = 0, .window = 90};
  const std::vector<int32_t> text = sample_calibration_text(*model, options);
  int ends = 0;
  for (size_t i = 0; i < text.size(); i++) {
    if (i % 90 == 0) {
      EXPECT_EQ(text[i], kTinyBos);
    }
    if (text[i] != kTinyEos || (i + 1) % 90 == 0) continue;
    ends++;
    EXPECT_EQ(text[i + 1], kTinyBos) << i;
  }
  EXPECT_GT(ends, 0) << "this seed ends no text: the test shows nothing";
}

/// What the slots decode together is what each of them would decode alone: no slot reads another's pages.
TEST(SampleText, SlotsAreIndependentOfEachOther) {
  TinyModel model(50);
  const CalibrateOptions options{.n_tokens = 200, .n_held_out = 0, .window = 50};
  const std::vector<int32_t> text = sample_calibration_text(*model, options);
  SequenceWalk walk(*model, CacheSpec::parse("bf16"), nullptr, 50, 50);
  std::vector<float> logits(50 * kTinyVocab);
  double nll = 0, entropy = 0;
  int scored = 0;
  for (int w = 0; w < 4; w++) {
    const auto window = std::span(text).subspan(w * 50, 50);
    walk.restart(0);
    walk.advance(window, logits, nullptr);
    for (int i = 1; i + 1 < 50; i++) {
      if (window[i + 1] == kTinyBos || window[i] == kTinyBos) continue;
      const float* row = logits.data() + i * kTinyVocab;
      double z = 0, mean = 0;
      for (int t = 0; t < kTinyVocab; t++) z += std::exp(double(row[t]));
      for (int t = 0; t < kTinyVocab; t++) mean += std::exp(double(row[t])) / z * row[t];
      nll += std::log(z) - row[window[i + 1]];
      entropy += std::log(z) - mean;
      scored++;
    }
  }
  // At temperature 1 the mean loss of the text is the mean entropy; the deviation of one token's is about 1.
  EXPECT_NEAR(nll / scored, entropy / scored, 0.25);
  EXPECT_LT(entropy / scored, 3.7) << "log(61) is 4.1: a flat model shows nothing";
}

TEST(DefaultPath, IsUnderTheFingerprint) {
  EXPECT_NE(default_calibration_path("qwen3-ff").find("/calibration/qwen3-ff.safetensors"),
            std::string::npos);
}

}  // namespace
}  // namespace kv2
