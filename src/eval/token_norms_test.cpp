// SPDX-License-Identifier: Apache-2.0
// measure_token_norms against direct computation over all rows of a text; LogHistogram against sorting.
#include "eval/token_norms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "calibrate/sequence_walk.h"
#include "calibrate/tiny_model.h"
#include "eval/log_histogram.h"
#include "kv2/error.h"

namespace kv2 {
namespace {

using testing::random_tokens;
using testing::TinyModel;

TEST(LogHistogram, QuantilesWithinABin) {
  LogHistogram h;
  std::mt19937 random(1);
  std::lognormal_distribution<double> values(1.0, 2.0);
  std::vector<double> all;
  double sum = 0;
  for (int i = 0; i < 5001; i++) {
    all.push_back(values(random));
    h.add(all.back());
    sum += all.back();
  }
  std::sort(all.begin(), all.end());
  for (const double q : {0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 1.0}) {
    const double want = all[static_cast<size_t>(q * 5000 + 0.5)];
    EXPECT_NEAR(h.quantile(q), want, 0.011 * want) << q;
  }
  EXPECT_EQ(h.min(), all.front());
  EXPECT_EQ(h.max(), all.back());
  EXPECT_EQ(h.count(), 5001);
  EXPECT_NEAR(h.mean(), sum / 5001, 1e-9 * sum);
}

TEST(LogHistogram, ZerosAndHugeValuesKeepTheirPlace) {
  LogHistogram h;
  EXPECT_EQ(h.quantile(0.5), 0);
  h.add(0);
  h.add(1e300);
  EXPECT_EQ(h.quantile(0), 0);
  EXPECT_EQ(h.max(), 1e300);
  EXPECT_GT(h.quantile(1), 1e9);
}

/// Rows of Q, K and V of one layer.
struct Recorder final : Observer {
  KvShape shape;
  int layer;
  std::vector<float> q, k, v;
  Recorder(const KvShape& s, int l) : shape(s), layer(l) {}
  void on_layer(const LayerActivations& a) override {
    if (a.layer != layer) return;
    const size_t q_width = static_cast<size_t>(shape.n_heads) * shape.head_dim,
                 kv_width = static_cast<size_t>(shape.n_kv_heads) * shape.head_dim;
    q.insert(q.end(), a.q, a.q + a.n_rows * q_width);
    k.insert(k.end(), a.k, a.k + a.n_rows * kv_width);
    v.insert(v.end(), a.v, a.v + a.n_rows * kv_width);
  }
};

double norm(const float* x, int n) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += double(x[i]) * x[i];
  return std::sqrt(sum);
}

constexpr int kTokens = 210, kGroup = 30, kSkip = 60;

class TokenNorms : public ::testing::Test {
 protected:
  TokenNorms() : shape_(model_->config().kv_shape()), recorder_(shape_, 1) {
    hadamard_.layers.resize(shape_.n_layers, {hadamard_transform(shape_.n_kv_heads, shape_.head_dim),
                                              hadamard_transform(shape_.n_kv_heads, shape_.head_dim)});
    result_ = measure_token_norms(*model_, tokens_, {{"none", {}}, hadamard_},
                                  {.chunk_tokens = 70, .group = kGroup, .skip_tokens = kSkip});
    SequenceWalk walk(*model_, CacheSpec::parse("bf16"), nullptr, kTokens, 60);
    walk.restart(0);
    for (int i = 0; i < kTokens; i += 60)
      walk.advance(std::span(tokens_).subspan(i, std::min(60, kTokens - i)), {}, &recorder_);
  }

  TinyModel model_{128};
  std::vector<int32_t> tokens_ = random_tokens(kTokens, 9);
  KvShape shape_;
  Recorder recorder_;
  NamedTransforms hadamard_{"hadamard", {}};
  TokenNormResult result_;
};

TEST_F(TokenNorms, NormsByTokenHeadAndPage) {
  const std::pair<const std::vector<float>*, int> tensors[] = {
      {&recorder_.q, shape_.n_heads}, {&recorder_.k, shape_.n_kv_heads}, {&recorder_.v, shape_.n_kv_heads}};
  for (int i = 0; i < 3; i++) {
    const auto& [rows, heads] = tensors[i];
    const NormSummary& got = result_.norms[3 + i];  // of layer 1
    EXPECT_EQ(got.tensor, "qkv"[i]);
    EXPECT_EQ(got.layer, 1);
    std::vector<double> by_token, by_head;
    const int d = shape_.head_dim;
    for (int t = 0; t < kTokens; t++) {
      by_token.push_back(norm(rows->data() + t * heads * d, heads * d) / std::sqrt(heads));
      for (int h = 0; h < heads; h++) by_head.push_back(norm(rows->data() + (t * heads + h) * d, d));
    }
    ASSERT_EQ(got.first.size(), 16u);
    EXPECT_NEAR(got.first[3], by_token[3], 1e-6 * by_token[3]);
    ASSERT_EQ(got.pages.size(), 4u);
    const auto page = std::span(by_token).subspan(128, 64);
    double sum = 0;
    for (const double x : page) sum += x;
    EXPECT_NEAR(got.pages[2].min, *std::min_element(page.begin(), page.end()), 1e-5);
    EXPECT_NEAR(got.pages[2].max, *std::max_element(page.begin(), page.end()), 1e-5);
    EXPECT_NEAR(got.pages[2].mean, sum / 64, 1e-5);
    std::sort(by_head.begin(), by_head.end());
    EXPECT_NEAR(got.head_ratio, by_head.back() / by_head.front(), 1e-6 * got.head_ratio);
    std::sort(by_token.begin(), by_token.end());
    EXPECT_NEAR(got.min, by_token.front(), 1e-6);
    EXPECT_NEAR(got.max, by_token.back(), 1e-6 * got.max);
    EXPECT_NEAR(got.ratio(), by_token.back() / by_token.front(), 1e-5 * got.ratio());
    EXPECT_NEAR(got.median, by_token[105], 0.02 * got.median);
  }
}

TEST_F(TokenNorms, StagesByDefinition) {
  const int width = shape_.n_kv_heads * shape_.head_dim, d = shape_.head_dim;
  ASSERT_EQ(result_.stages.size(), 2u * 2 * 2);
  for (int transform = 0; transform < 2; transform++)
    for (int scaled = 0; scaled < 2; scaled++) {
      double energy = 0, bound = 0, uniform = 0, measured = 0, per_token = 0, ratio = 0;
      int groups = 0;
      for (int begin = kSkip; begin + kGroup <= kTokens; begin += kGroup, groups++) {
        std::vector<std::vector<double>> x(kGroup, std::vector<double>(width));
        std::vector<double> n(kGroup);
        for (int t = 0; t < kGroup; t++) {
          const float* row = recorder_.k.data() + (begin + t) * width;
          n[t] = norm(row, width);
          for (int c = 0; c < width; c++) {
            double y = row[c];
            if (transform == 1) {
              y = 0;
              const float* h = hadamard_.layers[1].k.encode.data() + static_cast<size_t>(c / d) * d * d;
              for (int i = 0; i < d; i++) y += double(row[c / d * d + i]) * h[i * d + c % d];
            }
            x[t][c] = y / (scaled ? n[t] : 1);
          }
        }
        const double low = *std::min_element(n.begin(), n.end()),
                     high = *std::max_element(n.begin(), n.end());
        ratio += scaled ? 1 : high / low;
        if (!scaled) bound += kGroup * (high - low) * (high - low) / 108;
        std::vector<double> error(kGroup, 0.0);
        for (int c = 0; c < width; c++) {
          double smallest = 1e30, largest = -1e30;
          for (int t = 0; t < kGroup; t++)
            smallest = std::min(smallest, x[t][c]), largest = std::max(largest, x[t][c]);
          const double step = (largest - smallest) / 3;
          for (int t = 0; t < kGroup; t++) {
            const double weight = scaled ? n[t] : 1;
            const double e =
                weight * (smallest + step * std::floor((x[t][c] - smallest) / step + 0.5) - x[t][c]);
            error[t] += e * e;
            uniform += weight * weight * step * step / 12;
          }
        }
        for (int t = 0; t < kGroup; t++) {
          energy += n[t] * n[t];
          measured += error[t];
          per_token += error[t] / (n[t] * n[t]);
        }
      }
      const KeyStage& got = result_.stages[(2 + transform) * 2 + scaled];  // layer 1
      EXPECT_EQ(got.layer, 1);
      EXPECT_EQ(got.transform, transform == 0 ? "none" : "hadamard");
      EXPECT_EQ(got.scaled, scaled == 1);
      EXPECT_NEAR(got.ratio, ratio / groups, 1e-5 * got.ratio);
      EXPECT_NEAR(got.bound, bound / energy, 1e-5 * got.bound);
      EXPECT_NEAR(got.uniform, uniform / energy, 1e-5 * got.uniform);
      EXPECT_NEAR(got.measured, measured / energy, 1e-4 * got.measured);
      EXPECT_NEAR(got.per_token, per_token / (groups * kGroup), 1e-4 * got.per_token);
      EXPECT_GT(got.measured, 0);
      EXPECT_GE(got.uniform, got.bound) << "the paper's bound must hold";
    }
}

TEST_F(TokenNorms, JsonAndTable) {
  std::istringstream lines(to_json_lines(result_));
  int norms = 0, stages = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto j = nlohmann::json::parse(line);
    norms += j["judge"] == "norms";
    stages += j["judge"] == "norm-stages";
  }
  EXPECT_EQ(norms, 6);
  EXPECT_EQ(stages, 8);
  const std::string table = to_table(result_);
  EXPECT_NE(table.find("hadamard + token scaling"), std::string::npos);
  EXPECT_EQ(table.find("nan"), std::string::npos);
}

TEST_F(TokenNorms, SaysWhatIsWrong) {
  const auto message = [&](int n, const TokenNormOptions& options) -> std::string {
    try {
      measure_token_norms(*model_, random_tokens(n, 1), {}, options);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::BadArgument);
      return e.what();
    }
    return "no error";
  };
  EXPECT_NE(message(0, {}).find("the text has 0"), std::string::npos);
  EXPECT_NE(message(31, {}).find("the text has 31"), std::string::npos);
  EXPECT_NE(message(1000, {}).find("context is 768"), std::string::npos);
  EXPECT_NE(message(100, {.group = 1}).find("groups of 1 "), std::string::npos);
  EXPECT_NE(message(200, {.chunk_tokens = 20}).find("chunks of 20"), std::string::npos);
  EXPECT_NE(message(200, {.skip_tokens = 33}).find("behind 33"), std::string::npos);
}

}  // namespace
}  // namespace kv2
