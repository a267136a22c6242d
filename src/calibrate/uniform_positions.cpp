// SPDX-License-Identifier: Apache-2.0
#include "calibrate/uniform_positions.h"

#include <algorithm>
#include <cmath>

namespace kv2 {

UniformPositions::UniformPositions(const ModelConfig& config, Observer& to)
    : n_heads_(config.n_heads),
      n_kv_heads_(config.n_kv_heads),
      head_dim_(config.head_dim),
      context_(config.context),
      pairing_(config.rope.pairing),
      inv_frequency_(config.rope.inv_frequency(config.head_dim)),
      n_seen_(config.n_layers, 0),
      to_(to) {}

int64_t UniformPositions::position(int64_t i, int64_t context) {
  constexpr double kGolden = 0.6180339887498949;
  const double x = (static_cast<double>(i) + 0.5) * kGolden;
  return std::min(static_cast<int64_t>((x - std::floor(x)) * static_cast<double>(context)), context - 1);
}

void UniformPositions::on_layer(const LayerActivations& a) {
  const size_t pairs = inv_frequency_.size();
  positions_.resize(a.n_rows);
  cosine_.resize(a.n_rows * pairs);
  sine_.resize(a.n_rows * pairs);
  int64_t& seen = n_seen_.at(a.layer);
  for (int r = 0; r < a.n_rows; r++) {
    positions_[r] = position(seen++, context_);
    const double moved = static_cast<double>(positions_[r] - a.positions[r]);
    for (size_t i = 0; i < pairs; i++) {
      const double angle = moved * inv_frequency_[i];
      cosine_[r * pairs + i] = static_cast<float>(std::cos(angle));
      sine_[r * pairs + i] = static_cast<float>(std::sin(angle));
    }
  }
  move(a.q, n_heads_, a, q_);
  move(a.k, n_kv_heads_, a, k_);
  LayerActivations b = a;
  b.positions = positions_;
  b.q = q_.data();
  b.k = k_.data();
  to_.on_layer(b);
}

void UniformPositions::move(const float* in, int n_heads, const LayerActivations& a,
                            std::vector<float>& out) const {
  const int d = head_dim_, pairs = d / 2;
  const int step = pairing_ == RopePairing::Adjacent ? 2 : 1,
            partner = pairing_ == RopePairing::Adjacent ? 1 : pairs;
  out.resize(static_cast<size_t>(a.n_rows) * n_heads * d);
  for (int r = 0; r < a.n_rows; r++) {
    const float* cosine = cosine_.data() + static_cast<size_t>(r) * pairs;
    const float* sine = sine_.data() + static_cast<size_t>(r) * pairs;
    for (int h = 0; h < n_heads; h++) {
      const size_t first = (static_cast<size_t>(r) * n_heads + h) * d;
      for (int i = 0; i < pairs; i++) {
        const float x = in[first + step * i], y = in[first + step * i + partner];
        out[first + step * i] = x * cosine[i] - y * sine[i];
        out[first + step * i + partner] = x * sine[i] + y * cosine[i];
      }
    }
  }
}

}  // namespace kv2
