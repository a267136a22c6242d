// SPDX-License-Identifier: Apache-2.0
// ClipSearch against loops in double that quantize vector by vector with the codec's specification.
#include "calibrate/clip_search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/float16.h"
#include "kv2/error.h"
#include "quant/int2/int2.h"

namespace kv2 {
namespace {

using Doubles = std::vector<double>;

struct Example {
  KvShape shape{.n_layers = 1, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16};
  int n;
  std::vector<float> q, k, v;
  std::vector<int64_t> positions;

  explicit Example(int n_rows) : n(n_rows) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& x, int heads, float mean) {
      x.resize(static_cast<size_t>(n) * heads * shape.head_dim);
      for (size_t i = 0; i < x.size(); i++)
        x[i] =
            mean + normal(random) * (i % 16 == 3 ? 4.0f : 1.0f);  // an outlier channel, so that clips matter
    };
    fill(q, shape.n_heads, 0.2f);
    fill(k, shape.n_kv_heads, 0.4f);
    fill(v, shape.n_kv_heads, -0.3f);
    for (int i = 0; i < n; i++) positions.push_back(i);
  }
  LayerActivations activations() const {
    return {0, n, positions, q.data(), k.data(), k.data(), v.data(), q.data()};
  }
};

/// A transform whose decode is no transpose of its encode, with a mean: what the seam allows.
Transform scaled_hadamard(const KvShape& shape) {
  Transform t = hadamard_transform(shape.n_kv_heads, shape.head_dim);
  const int d = shape.head_dim;
  for (int h = 0; h < shape.n_kv_heads; h++)
    for (int r = 0; r < d; r++)
      for (int c = 0; c < d; c++) {
        const float factor = 0.5f + 0.1f * static_cast<float>(c);  // encode·diag, diag⁻¹·decode
        t.encode[(h * d + r) * d + c] *= factor;
        t.decode[(h * d + c) * d + r] /= factor;
      }
  t.mean.assign(static_cast<size_t>(shape.n_kv_heads) * d, 0.25f);
  return t;
}

/// x - x̂ of one vector, in the basis of x.
Doubles error_of(const float* x, const Transform& t, int head, int d, const Coder& coder) {
  std::vector<bf16> rounded(d);
  Doubles stored(d, 0.0), out(d, 0.0);
  for (int c = 0; c < d; c++) {
    for (int r = 0; r < d; r++)
      stored[c] += (x[r] - (t.mean.empty() ? 0.0f : t.mean[head * d + r])) *
                   (t.encode.empty() ? double(r == c) : double(t.encode[(head * d + r) * d + c]));
    rounded[c] = to_bf16(static_cast<float>(stored[c]));
  }
  std::vector<uint8_t> codes(d);
  std::vector<fp16> scale(d / coder.group), offset(d / coder.group);
  std::vector<float> decoded(d);
  int2::encode_vector(rounded.data(), d, coder, codes.data(), scale.data(), offset.data());
  int2::decode_vector(codes.data(), scale.data(), offset.data(), d, coder.group, decoded.data());
  for (int r = 0; r < d; r++)
    for (int c = 0; c < d; c++)
      out[r] += (stored[c] - decoded[c]) *
                (t.decode.empty() ? double(r == c) : double(t.decode[(head * d + c) * d + r]));
  return out;
}

struct Naive {
  double k = 0, v = 0;
};

Naive naive_errors(const Example& x, const LayerTransforms& t, const Coder& coder, int exact) {
  const int d = x.shape.head_dim, per_kv = x.shape.q_per_kv();
  Naive out;
  for (int head = 0; head < x.shape.n_heads; head++) {
    const int kv = head / per_kv;
    std::vector<Doubles> ek(x.n, Doubles(d, 0.0)), ev(x.n, Doubles(d, 0.0));
    const auto row = [&](const std::vector<float>& m, int heads, int h, int i) {
      return m.data() + (static_cast<size_t>(i) * heads + h) * d;
    };
    for (int j = exact; j < x.n; j++) {
      ek[j] = error_of(row(x.k, 2, kv, j), t.k, kv, d, coder);
      ev[j] = error_of(row(x.v, 2, kv, j), t.v, kv, d, coder);
    }
    for (int i = 0; i < x.n; i++) {
      const float* q = row(x.q, 4, head, i);
      Doubles weight(i + 1), o(d, 0.0);
      double sum = 0;
      const auto dot = [&](auto* y) {
        double s = 0;
        for (int c = 0; c < d; c++) s += double(q[c]) * y[c];
        return s / std::sqrt(double(d));
      };
      for (int j = 0; j <= i; j++) sum += weight[j] = std::exp(dot(row(x.k, 2, kv, j)));
      for (int j = 0; j <= i; j++) {
        const double p = weight[j] / sum, e = dot(ek[j].data());
        out.k += p * e * e;
        for (int c = 0; c < d; c++) o[c] += p * ev[j][c];
      }
      for (const double y : o) out.v += y * y;
    }
  }
  return out;
}

class ClipSearchOf : public ::testing::TestWithParam<int> {};

TEST_P(ClipSearchOf, FindsWhatBruteForceFinds) {
  const int which = GetParam();
  const Example x(83);  // neither a page nor a block of queries divides it
  LayerTransforms t;
  if (which == 1) t = {hadamard_transform(2, 16), hadamard_transform(2, 16)};
  if (which == 2) t = {scaled_hadamard(x.shape), scaled_hadamard(x.shape)};
  const std::vector<float> ratios{0.5f, 0.7f, 0.85f, 0.95f, 1.0f};
  const int exact = which == 0 ? 0 : 21, group = which == 1 ? 8 : 16;
  ThreadTeam team(2);
  ClipSearch search(x.shape, {t}, {.ratios = ratios, .group = group, .exact_tokens = exact}, team);
  search.on_layer(x.activations());
  search.on_layer(x.activations());  // errors of windows add up
  size_t best_k = 0, best_v = 0;
  std::vector<Naive> want;
  for (size_t r = 0; r < ratios.size(); r++) {
    want.push_back(naive_errors(x, t, Coder{CoderKind::Round, group, clip_index(ratios[r], 16)}, exact));
    EXPECT_NEAR(search.k_errors(0)[r], 2 * want[r].k, 1e-3 * want[r].k) << ratios[r];
    EXPECT_NEAR(search.v_errors(0)[r], 2 * want[r].v, 1e-3 * want[r].v) << ratios[r];
    if (want[r].k <= want[best_k].k) best_k = r;
    if (want[r].v <= want[best_v].v) best_v = r;
  }
  EXPECT_EQ(search.best(0).k, ratios[best_k]);
  EXPECT_EQ(search.best(0).v, ratios[best_v]);
}
INSTANTIATE_TEST_SUITE_P(Transforms, ClipSearchOf, ::testing::Values(0, 1, 2));

TEST(ClipSearch, ThreadsDoNotMatterAndTiesGoToTheWidest) {
  const Example x(70);
  ThreadTeam one(1), three(3);
  ClipSearch a(x.shape, {}, {.ratios = {0.8f, 1.0f}, .group = 16, .exact_tokens = 0}, one);
  ClipSearch b(x.shape, {}, {.ratios = {0.8f, 1.0f}, .group = 16, .exact_tokens = 0}, three);
  a.on_layer(x.activations());
  b.on_layer(x.activations());
  EXPECT_EQ(a.k_errors(0), b.k_errors(0));
  EXPECT_EQ(a.v_errors(0), b.v_errors(0));
  ClipSearch all_exact(x.shape, {}, {.ratios = {0.8f, 1.0f}, .group = 16, .exact_tokens = 100}, one);
  all_exact.on_layer(x.activations());
  EXPECT_EQ(all_exact.best(0).k, 1.0f);
  EXPECT_EQ(all_exact.best(0).v, 1.0f);
}

TEST(ClipSearch, RefusesAWindowInPieces) {
  Example x(10);
  ThreadTeam team(1);
  ClipSearch search(x.shape, {}, {.ratios = {1.0f}, .group = 16}, team);
  x.positions[0] = 64;
  EXPECT_THROW(search.on_layer(x.activations()), Error);
}

}  // namespace
}  // namespace kv2
