// SPDX-License-Identifier: Apache-2.0
// The transforms that need no calibration. Calibrated ones: rotation.cpp.
#include "quant/transform.h"

#include <cstdint>

#include "base/check.h"
#include "base/hash.h"
#include "quant/rotation.h"

namespace kv2 {

Transform identity_transform(int n_kv_heads, int head_dim) {
  return {.n_kv_heads = n_kv_heads, .head_dim = head_dim};
}

namespace {

/// m [d, d] on every head, orthogonal.
Transform rotation_by(const std::vector<double>& m, int n_kv_heads, size_t d) {
  Transform transform{.n_kv_heads = n_kv_heads, .head_dim = static_cast<int>(d)};
  transform.encode.resize(n_kv_heads * d * d);
  transform.decode.resize(n_kv_heads * d * d);
  for (int head = 0; head < n_kv_heads; ++head) {
    float* encode = transform.encode.data() + head * d * d;
    float* decode = transform.decode.data() + head * d * d;
    for (size_t i = 0; i < d; ++i) {
      for (size_t j = 0; j < d; ++j) {
        encode[i * d + j] = decode[j * d + i] = static_cast<float>(m[i * d + j]);
      }
    }
  }
  return transform;
}

}  // namespace

std::string value_bases_of(std::span<const LayerTransforms> layers) {
  Hash128 hash;
  bool any = false;
  for (const LayerTransforms& t : layers) {
    any = any || !t.v.decode.empty();
    for (const std::vector<float>* values : {&t.v.decode, &t.v.mean}) {
      const uint64_t n = values->size();
      hash.add(std::as_bytes(std::span(&n, 1)));
      hash.add(std::as_bytes(std::span(*values)));
    }
  }
  return any ? hash.hex() : std::string();
}

Transform hadamard_transform(int n_kv_heads, int head_dim) {
  return hadamard_transform(n_kv_heads, head_dim, 0);
}

Transform hadamard_transform(int n_kv_heads, int head_dim, int block) {
  if (block == 0) block = head_dim;
  KV2_CHECK(block > 0 && head_dim % block == 0, "blocks of {} in head_dim {}", block, head_dim);
  const std::vector<double> h = hadamard(block);
  const size_t d = static_cast<size_t>(head_dim), b = static_cast<size_t>(block);
  std::vector<double> m(d * d, 0.0);
  for (size_t i = 0; i < d; ++i)
    for (size_t j = 0; j < b; ++j) m[i * d + i / b * b + j] = h[i % b * b + j];
  return rotation_by(m, n_kv_heads, d);
}

Transform signed_hadamard_transform(int n_kv_heads, int head_dim) {
  std::vector<double> m = hadamard(head_dim);
  const size_t d = static_cast<size_t>(head_dim);
  uint64_t state = 0x9E3779B97F4A7C15u;
  for (size_t i = 0; i < d; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    if (state >> 63)
      for (size_t j = 0; j < d; ++j) m[i * d + j] = -m[i * d + j];
  }
  return rotation_by(m, n_kv_heads, d);
}

}  // namespace kv2
