// SPDX-License-Identifier: Apache-2.0
// UniformPositions against the oracle's RoPE of the rows before RoPE, for both pairings.
#include "calibrate/uniform_positions.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "ops/reference/reference.h"

namespace kv2 {
namespace {

struct Seen final : Observer {
  void on_layer(const LayerActivations& a) override {
    positions.assign(a.positions.begin(), a.positions.end());
    q.assign(a.q, a.q + a.n_rows * 6 * 8);
    k.assign(a.k, a.k + a.n_rows * 2 * 8);
    others = {a.k_before_rope, a.v, a.attention_out};
  }
  std::vector<int64_t> positions;
  std::vector<float> q, k;
  std::vector<const float*> others;
};

std::vector<float> roped(const std::vector<float>& x, int n_heads, const std::vector<int64_t>& positions,
                         const ModelConfig& config) {
  const auto backend = make_reference_backend(LinearPrecision::F32);
  const std::vector<float> inv_frequency = config.rope.inv_frequency(config.head_dim);
  std::vector<float> out = x;
  backend->rope({.x = out.data(),
                 .positions = positions.data(),
                 .inv_frequency = inv_frequency.data(),
                 .n_rows = static_cast<int>(positions.size()),
                 .n_heads = n_heads,
                 .head_dim = config.head_dim,
                 .pairing = config.rope.pairing});
  return out;
}

TEST(UniformPositions, RowsAreThoseOfTheNewPositions) {
  std::mt19937 random(7);
  std::normal_distribution<float> noise(0.3f, 1.0f);
  for (const RopePairing pairing : {RopePairing::Adjacent, RopePairing::Halves}) {
    ModelConfig config{.n_layers = 2, .n_heads = 6, .n_kv_heads = 2, .head_dim = 8, .context = 5000};
    config.rope.pairing = pairing;
    const int n = 13;
    std::vector<float> q(n * 6 * 8), k(n * 2 * 8), v(n * 2 * 8), o(n * 6 * 8);
    for (auto* x : {&q, &k, &v, &o})
      for (float& y : *x) y = noise(random);
    std::vector<int64_t> positions(n);
    for (int i = 0; i < n; i++) positions[i] = 100 + i;
    const std::vector<float> q_roped = roped(q, 6, positions, config),
                             k_roped = roped(k, 2, positions, config);
    Seen seen;
    UniformPositions uniform(config, seen);
    for (int call = 0; call < 2; call++)
      for (int layer = 0; layer < 2; layer++) {
        uniform.on_layer({.layer = layer,
                          .n_rows = n,
                          .positions = positions,
                          .q = q_roped.data(),
                          .k_before_rope = k.data(),
                          .k = k_roped.data(),
                          .v = v.data(),
                          .attention_out = o.data()});
        for (int i = 0; i < n; i++)
          EXPECT_EQ(seen.positions[i], UniformPositions::position(call * n + i, config.context));
        const auto q_new = roped(q, 6, seen.positions, config), k_new = roped(k, 2, seen.positions, config);
        for (size_t i = 0; i < q.size(); i++) ASSERT_NEAR(seen.q[i], q_new[i], 1e-5) << i;
        for (size_t i = 0; i < k.size(); i++) ASSERT_NEAR(seen.k[i], k_new[i], 1e-5) << i;
        EXPECT_EQ(seen.others, (std::vector<const float*>{k.data(), v.data(), o.data()}));
      }
  }
}

TEST(UniformPositions, PositionsCoverTheContextEvenly) {
  for (const int64_t context : {1, 7, 512, 131072}) {
    std::vector<int> eighths(8, 0);
    for (int64_t i = 0; i < 4096; i++) {
      const int64_t p = UniformPositions::position(i, context);
      ASSERT_GE(p, 0);
      ASSERT_LT(p, context);
      eighths[p * 8 / context]++;
    }
    if (context >= 512)
      for (const int n : eighths) EXPECT_NEAR(n, 512, 4);
  }
}

}  // namespace
}  // namespace kv2
