// SPDX-License-Identifier: Apache-2.0
// Transform: the basis in which K or V of one layer is stored. x' = (x - mean)·encode, x = x'·decode + mean,
// with decode = encode⁻¹ (encodeᵀ for a rotation). Row vectors times matrices, one matrix per KV head; q of
// that head's query heads becomes q' = q·decodeᵀ, so that q·k = q·mean + q'·k'.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace kv2 {

struct Transform {
  int n_kv_heads = 0, head_dim = 0;
  std::vector<float> encode;  // [n_kv_heads, head_dim, head_dim]; empty: identity, nothing is applied
  std::vector<float> decode;  // [n_kv_heads, head_dim, head_dim]
  std::vector<float> mean;    // [n_kv_heads, head_dim]; empty: zero

  bool identity() const { return encode.empty() && mean.empty(); }
};

/// K's and V's transforms of one layer.
struct LayerTransforms {
  Transform k, v;
};

/// Names what leads V out of its stored basis in all layers, by the bytes of matrices and means; empty where
/// no layer has such a matrix.
std::string value_bases_of(std::span<const LayerTransforms> layers);

Transform identity_transform(int n_kv_heads, int head_dim);
/// The normalised Hadamard matrix of order head_dim on every KV head. Orders: m·2^n with m in {1, 12, 20,
/// 28}; others throw Unsupported listing these.
Transform hadamard_transform(int n_kv_heads, int head_dim);
/// Block-diagonal: blocks of `block` channels, which divides head_dim; 0: one block.
Transform hadamard_transform(int n_kv_heads, int head_dim, int block);
/// x·diag(signs)·H with one fixed sequence of random signs for all heads and models (TurboQuant's practical
/// form).
Transform signed_hadamard_transform(int n_kv_heads, int head_dim);

}  // namespace kv2
