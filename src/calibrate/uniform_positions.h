// SPDX-License-Identifier: Apache-2.0
// UniformPositions: an Observer in front of another one that gives every row of q and k a new position,
// uniform over the model's context, by one more RoPE rotation. Attention is relative, so text read in short
// windows is as good as any; but q'q and k'k after RoPE are not: in windows of 512 tokens slow RoPE pairs
// stay near one phase, and a metric fitted from them takes the other phase for free. Values, outputs and keys
// before RoPE pass unchanged.
//
// Measured: docs/quality.md, "Positions of the calibration".
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/model.h"

namespace kv2 {

class UniformPositions final : public Observer {
 public:
  /// Positions are drawn from [0, config.context). `to` must outlive this.
  UniformPositions(const ModelConfig& config, Observer& to);

  /// Positions reach `to` as the new ones.
  void on_layer(const LayerActivations& a) override;

  /// The new position of the i-th row that a layer sees: the additive sequence of the golden ratio, which
  /// spreads any number of rows evenly. In [0, context).
  static int64_t position(int64_t i, int64_t context);

 private:
  void move(const float* in, int n_heads, const LayerActivations& a, std::vector<float>& out) const;

  int n_heads_, n_kv_heads_, head_dim_;
  int64_t context_;
  RopePairing pairing_;
  std::vector<float> inv_frequency_;  // [head_dim / 2]
  std::vector<int64_t> n_seen_;       // [n_layers] rows so far
  std::vector<int64_t> positions_;    // [n_rows] of this call
  std::vector<float> cosine_, sine_;  // [n_rows, head_dim / 2] of new minus old position
  std::vector<float> q_, k_;          // as in LayerActivations
  Observer& to_;
};

}  // namespace kv2
