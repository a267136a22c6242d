// SPDX-License-Identifier: Apache-2.0
// OutputBasis: V's way back out of the basis in which it is stored, absorbed by W_o. Attention's output x of
// a head is in V's stored basis; the model's own is x·decode + mean (quant/transform.h), and W_o takes that:
//
//   w·(x·decode + mean)ᵀ = (w·decodeᵀ)·xᵀ + w·meanᵀ        w: a head's part of a row of W_o
//
// so that rows w·decodeᵀ and one more bias do both in the product that comes anyway. W_v does not absorb the
// way in: a GPU does that in one kernel with RoPE and append, and there would be no op less.
#pragma once

#include <vector>

#include "quant/transform.h"

namespace kv2 {

class OutputBasis {
 public:
  /// Of a layer whose V has a decode matrix; n_heads: query heads, a multiple of v.n_kv_heads.
  OutputBasis(const Transform& v, int n_heads);

  bool has_mean() const { return !mean_.empty(); }
  /// Rows of W_o, [n_rows, n_heads·head_dim], in place; many rows on all cores. Sums in f32.
  void absorb(float* rows, int n_rows) const;
  /// bias[r] += what the means add to row r of W_o as the file has it; sums in f64.
  void add_mean(const float* rows, int n_rows, float* bias) const;

 private:
  size_t n_heads_, q_per_kv_, d_;
  std::vector<float> turned_;  // decodeᵀ of every KV head: [n_kv_heads][head_dim of the output][head_dim]
  std::vector<float> mean_;    // [n_kv_heads, head_dim] or empty
};

}  // namespace kv2
