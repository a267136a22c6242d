// SPDX-License-Identifier: Apache-2.0
// The transforms that need no calibration. Calibrated ones: rotation.cpp.
#include "quant/transform.h"

#include "quant/rotation.h"

namespace kv2 {

Transform identity_transform(int n_kv_heads, int head_dim) {
  return {.n_kv_heads = n_kv_heads, .head_dim = head_dim};
}

Transform hadamard_transform(int n_kv_heads, int head_dim) {
  const std::vector<double> h = hadamard(head_dim);
  const size_t d = static_cast<size_t>(head_dim);
  Transform transform{.n_kv_heads = n_kv_heads, .head_dim = head_dim};
  transform.encode.resize(n_kv_heads * d * d);
  transform.decode.resize(n_kv_heads * d * d);
  for (int head = 0; head < n_kv_heads; ++head) {
    float* encode = transform.encode.data() + head * d * d;
    float* decode = transform.decode.data() + head * d * d;
    for (size_t i = 0; i < d; ++i) {
      for (size_t j = 0; j < d; ++j) {
        encode[i * d + j] = decode[j * d + i] = static_cast<float>(h[i * d + j]);
      }
    }
  }
  return transform;
}

}  // namespace kv2
