// SPDX-License-Identifier: Apache-2.0
// Statistics against naive sums in double on random activations with a mean, cut into chunks of several
// sizes.
#include "calibrate/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kv2 {
namespace {

const KvShape kShape{.n_layers = 2, .n_heads = 6, .n_kv_heads = 2, .head_dim = 12};

/// All activations of one layer; rows are handed out in chunks.
struct Activations {
  int n;
  std::vector<float> q, k_pre, k, v, out;
  std::vector<int64_t> positions;

  Activations(int n_rows, uint32_t seed) : n(n_rows) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& x, int heads, float mean, float spread) {
      x.resize(static_cast<size_t>(n) * heads * kShape.head_dim);
      for (size_t i = 0; i < x.size(); i++) x[i] = mean * static_cast<float>(i % 5) + spread * normal(random);
    };
    fill(q, kShape.n_heads, 0.3f, 1.0f);
    fill(k_pre, kShape.n_kv_heads, -0.2f, 2.0f);
    fill(k, kShape.n_kv_heads, 0.5f, 1.5f);
    fill(v, kShape.n_kv_heads, 0.1f, 0.7f);
    fill(out, kShape.n_heads, -0.4f, 0.2f);
    for (int i = 0; i < n; i++) positions.push_back(i);
  }

  void feed(Observer& observer, int layer, int chunk) const {
    const size_t q_row = static_cast<size_t>(kShape.n_heads) * kShape.head_dim;
    const size_t kv_row = static_cast<size_t>(kShape.n_kv_heads) * kShape.head_dim;
    for (int begin = 0; begin < n; begin += chunk) {
      const int rows = std::min(chunk, n - begin);
      observer.on_layer(LayerActivations{layer, rows, std::span(positions).subspan(begin, rows),
                                         q.data() + begin * q_row, k_pre.data() + begin * kv_row,
                                         k.data() + begin * kv_row, v.data() + begin * kv_row,
                                         out.data() + begin * q_row});
    }
  }
};

/// Mean of w x'x of one KV head whose vectors lie `per_kv` side by side in rows of `heads` vectors.
std::vector<double> naive_cov(const std::vector<float>& x, int n, int heads, int kv_head, int per_kv,
                              const std::vector<double>& weights) {
  const int d = kShape.head_dim;
  std::vector<double> out(static_cast<size_t>(d) * d, 0.0);
  double total = 0;
  for (int t = 0; t < n; t++)
    for (int g = 0; g < per_kv; g++) {
      const float* row = x.data() + (static_cast<size_t>(t) * heads + kv_head * per_kv + g) * d;
      total += weights[t];
      for (int a = 0; a < d; a++)
        for (int b = 0; b < d; b++) out[a * d + b] += weights[t] * row[a] * row[b];
    }
  for (double& y : out) y /= total;
  return out;
}

void expect_near(const std::vector<float>& got, int head, const std::vector<double>& want, double relative) {
  double largest = 0;
  for (const double y : want) largest = std::max(largest, std::abs(y));
  ASSERT_EQ(got.size(), want.size() * kShape.n_kv_heads);
  for (size_t i = 0; i < want.size(); i++)
    ASSERT_NEAR(got[head * want.size() + i], want[i], relative * largest)
        << "head " << head << " entry " << i;
}

constexpr double kFloat = 1e-7;  // one rounding to float at the end

TEST(Statistics, EqualsNaiveSumsInDouble) {
  ThreadTeam team(2);
  const int n = 301, d = kShape.head_dim;
  const Activations first(n, 1), second(n, 2);
  Statistics statistics(kShape, team);
  first.feed(statistics, 0, 100);
  second.feed(statistics, 1, 100);
  EXPECT_EQ(statistics.n_tokens(), n);
  const std::vector<double> ones(n, 1.0);
  for (int layer = 0; layer < 2; layer++) {
    const Activations& a = layer == 0 ? first : second;
    const LayerCalibration got = statistics.layer(layer);
    for (int h = 0; h < kShape.n_kv_heads; h++) {
      expect_near(got.c_q, h, naive_cov(a.q, n, kShape.n_heads, h, 3, ones), kFloat);
      expect_near(got.c_s, h, naive_cov(a.out, n, kShape.n_heads, h, 3, ones), kFloat);
      expect_near(got.k_cov, h, naive_cov(a.k, n, 2, h, 1, ones), kFloat);
      expect_near(got.k_pre_cov, h, naive_cov(a.k_pre, n, 2, h, 1, ones), kFloat);
      expect_near(got.v_cov, h, naive_cov(a.v, n, 2, h, 1, ones), kFloat);
      const std::pair<const std::vector<float>*, const std::vector<float>*> all[] = {
          {&got.k_mean, &a.k}, {&got.k_pre_mean, &a.k_pre}, {&got.v_mean, &a.v}};
      for (const auto& [mean, x] : all) {
        std::vector<double> want(d, 0.0);
        for (int t = 0; t < n; t++)
          for (int c = 0; c < d; c++) want[c] += (*x)[(static_cast<size_t>(t) * 2 + h) * d + c] / double(n);
        expect_near(*mean, h, want, kFloat);
      }
    }
  }
}

TEST(Statistics, EnergyWeightsComeFromEarlierChunks) {
  ThreadTeam team(2);
  const int n = 150, chunk = 40, d = kShape.head_dim;
  const Activations a(n, 3);
  Statistics statistics(kShape, team);
  a.feed(statistics, 0, chunk);
  for (int h = 0; h < kShape.n_kv_heads; h++) {
    std::vector<double> weights(n, 0.0);  // the first chunk has no M yet
    for (int t = chunk; t < n; t++) {
      const int before = t / chunk * chunk;
      const std::vector<double> m = naive_cov(a.q, before, kShape.n_heads, h, 3, std::vector<double>(n, 1.0));
      const float* k = a.k.data() + (static_cast<size_t>(t) * 2 + h) * d;
      for (int i = 0; i < d; i++)
        for (int j = 0; j < d; j++) weights[t] += k[i] * m[i * d + j] * k[j];
    }
    expect_near(statistics.layer(0).c_s_energy, h, naive_cov(a.v, n, 2, h, 1, weights), kFloat);
  }
}

TEST(Statistics, OneChunkHasNoEnergyWeights) {
  ThreadTeam team(1);
  const Activations a(50, 4);
  Statistics statistics(kShape, team);
  a.feed(statistics, 0, 50);
  EXPECT_EQ(statistics.layer(0).c_s_energy, statistics.layer(0).v_cov);
}

TEST(Statistics, ChunksAndThreadsDoNotMatter) {
  const Activations a(301, 5);
  ThreadTeam one(1), three(3);
  Statistics whole(kShape, one);
  a.feed(whole, 0, 301);
  const LayerCalibration want = whole.layer(0);
  for (const int chunk : {1, 7, 64, 100}) {
    Statistics by_one(kShape, one), by_three(kShape, three);
    a.feed(by_one, 0, chunk);
    a.feed(by_three, 0, chunk);
    const LayerCalibration x = by_one.layer(0), y = by_three.layer(0);
    EXPECT_EQ(x.c_q, y.c_q) << "bits must not depend on threads";
    EXPECT_EQ(x.c_s, y.c_s);
    EXPECT_EQ(x.c_s_energy, y.c_s_energy);
    EXPECT_EQ(x.k_cov, y.k_cov);
    // Sums in double differ by less than 1e-12, which a float of the mean shows as at most one unit in the
    // last place.
    for (const auto& [got, expected] : {std::pair{&x.c_q, &want.c_q},
                                        {&x.c_s, &want.c_s},
                                        {&x.k_cov, &want.k_cov},
                                        {&x.v_cov, &want.v_cov},
                                        {&x.k_mean, &want.k_mean}})
      for (size_t i = 0; i < got->size(); i++)
        ASSERT_NEAR((*got)[i], (*expected)[i], 1.2e-7 * std::abs((*expected)[i]) + 1e-12)
            << "chunk " << chunk;
  }
}

/// mean o'o of attention outputs is (1/N) V'S'SV: the paper's target needs no S.
TEST(Statistics, AttentionOutputsGiveThePapersTarget) {
  const KvShape shape{.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 4};
  const int n = 23, d = 4;
  std::mt19937 random(6);
  std::normal_distribution<double> normal(0.4, 1.0);
  std::vector<double> q(n * d), k(n * d), v(n * d), s(n * n, 0.0), o(n * d, 0.0);
  for (auto* x : {&q, &k, &v})
    for (double& y : *x) y = normal(random);
  for (int i = 0; i < n; i++) {
    double sum = 0;
    for (int j = 0; j <= i; j++) {
      double logit = 0;
      for (int c = 0; c < d; c++) logit += q[i * d + c] * k[j * d + c] / 2;
      sum += s[i * n + j] = std::exp(logit);
    }
    for (int j = 0; j <= i; j++) s[i * n + j] /= sum;
    for (int j = 0; j <= i; j++)
      for (int c = 0; c < d; c++) o[i * d + c] += s[i * n + j] * v[j * d + c];
  }
  std::vector<double> ss(n * n, 0.0);  // S'S
  for (int a = 0; a < n; a++)
    for (int b = 0; b < n; b++)
      for (int i = 0; i < n; i++) ss[a * n + b] += s[i * n + a] * s[i * n + b];
  const auto to_floats = [](const std::vector<double>& x) { return std::vector<float>(x.begin(), x.end()); };
  const std::vector<float> qf = to_floats(q), kf = to_floats(k), vf = to_floats(v), of = to_floats(o);
  std::vector<int64_t> positions(n);
  for (int i = 0; i < n; i++) positions[i] = i;
  ThreadTeam team(1);
  Statistics statistics(shape, team);
  statistics.on_layer({0, n, positions, qf.data(), kf.data(), kf.data(), vf.data(), of.data()});
  const LayerCalibration got = statistics.layer(0);
  for (int a = 0; a < d; a++)
    for (int b = 0; b < d; b++) {
      double want = 0;
      for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) want += v[i * d + a] * ss[i * n + j] * v[j * d + b] / n;
      EXPECT_NEAR(got.c_s[a * d + b], want, 1e-6);
    }
}

}  // namespace
}  // namespace kv2
