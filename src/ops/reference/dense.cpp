// SPDX-License-Identifier: Apache-2.0
// Reference of the ops that know nothing of the cache: embed, rms_norm, linear, rope, transform, swiglu.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/float16.h"
#include "ops/reference/ops.h"

namespace kv2::reference {
namespace {

float round_to_bf16(float x) {
  return to_float(to_bf16(x));
}

}  // namespace

DenseLinear::DenseLinear(const LinearSource& source, bool bf16)
    : n_in_(source.n_in), n_out_(source.n_out), bf16_(bf16), bias_(source.bias.begin(), source.bias.end()) {
  KV2_CHECK(n_in_ > 0 && n_out_ > 0 && source.fill, "a linear of {} by {}", n_in_, n_out_);
  KV2_CHECK(bias_.empty() || bias_.size() == static_cast<size_t>(n_out_), "bias of {} for {} outputs",
            bias_.size(), n_out_);
  weights_.resize(static_cast<size_t>(n_in_) * n_out_);
  std::vector<float> row(n_in_);
  for (int o = 0; o < n_out_; o++) {
    source.fill(o, 1, row.data());
    for (int i = 0; i < n_in_; i++)
      weights_[static_cast<size_t>(i) * n_out_ + o] = bf16_ ? round_to_bf16(row[i]) : row[i];
  }
}

void embed(const DenseLinear& table, const EmbedParams& p) {
  for (int r = 0; r < p.n_rows; r++) {
    const int token = p.tokens[r];
    KV2_CHECK(token >= 0 && token < table.n_out(), "token {} of a vocabulary of {}", token, table.n_out());
    for (int i = 0; i < table.n_in(); i++)
      p.out[static_cast<size_t>(r) * table.n_in() + i] = table.column(i)[token];
  }
}

void rms_norm(const RmsNormParams& p) {
  for (int r = 0; r < p.n_rows; r++) {
    const float* in = p.in + static_cast<size_t>(r) * p.width;
    float* out = p.out + static_cast<size_t>(r) * p.width;
    double squares = 0;
    for (int i = 0; i < p.width; i++) squares += static_cast<double>(in[i]) * in[i];
    const double factor = 1.0 / std::sqrt(squares / p.width + p.epsilon);
    for (int i = 0; i < p.width; i++) out[i] = static_cast<float>(in[i] * factor * p.weight[i]);
  }
}

void linear(const DenseLinear& weights, const LinearParams& p) {
  const int n_in = weights.n_in(), n_out = weights.n_out();
  std::vector<double> sums(n_out);
  for (int r = 0; r < p.n_rows; r++) {
    const float* in = p.in + static_cast<size_t>(r) * n_in;
    float* out = p.out + static_cast<size_t>(r) * n_out;
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int i = 0; i < n_in; i++) {
      const double x = weights.rounds_inputs() ? round_to_bf16(in[i]) : in[i];
      const float* column = weights.column(i);
      for (int o = 0; o < n_out; o++) sums[o] += x * column[o];
    }
    for (int o = 0; o < n_out; o++) {
      if (!weights.bias().empty()) sums[o] += weights.bias()[o];
      if (p.accumulate == Accumulate::Yes) sums[o] += out[o];
      out[o] = static_cast<float>(sums[o]);
    }
  }
}

// The angle is position·inv_frequency in double: at position 131071 a float product is off by up to 4e-3
// radians.
void rope(const RopeParams& p) {
  const int half = p.head_dim / 2;
  for (int r = 0; r < p.n_rows; r++) {
    for (int i = 0; i < half; i++) {
      const double angle = static_cast<double>(p.positions[r]) * p.inv_frequency[i];
      const double c = std::cos(angle), s = std::sin(angle);
      const int first = p.pairing == RopePairing::Adjacent ? 2 * i : i;
      const int second = p.pairing == RopePairing::Adjacent ? 2 * i + 1 : i + half;
      for (int h = 0; h < p.n_heads; h++) {
        float* x = p.x + (static_cast<size_t>(r) * p.n_heads + h) * p.head_dim;
        const double a = x[first], b = x[second];
        x[first] = static_cast<float>(a * c - b * s);
        x[second] = static_cast<float>(a * s + b * c);
      }
    }
  }
}

void transform(const TransformParams& p) {
  const int d = p.head_dim, q_per_kv = p.n_heads / p.n_kv_heads;
  std::vector<double> x(d), y(d);
  for (int r = 0; r < p.n_rows; r++) {
    for (int h = 0; h < p.n_heads; h++) {
      const size_t at = (static_cast<size_t>(r) * p.n_heads + h) * d;
      const size_t kv_head = static_cast<size_t>(h) / q_per_kv;
      const float* matrix = p.matrix + kv_head * d * d;
      for (int i = 0; i < d; i++)
        x[i] = static_cast<double>(p.in[at + i]) - (p.mean ? p.mean[kv_head * d + i] : 0.0f);
      for (int j = 0; j < d; j++) {
        y[j] = 0;
        for (int i = 0; i < d; i++) y[j] += x[i] * (p.transpose ? matrix[j * d + i] : matrix[i * d + j]);
        if (p.add) y[j] += p.add[kv_head * d + j];
      }
      for (int j = 0; j < d; j++) p.out[at + j] = static_cast<float>(y[j]);
    }
  }
}

void swiglu(const SwigluParams& p) {
  for (int r = 0; r < p.n_rows; r++) {
    for (int i = 0; i < p.width; i++) {
      const double gate = p.gate[r * p.stride + i], up = p.up[r * p.stride + i];
      p.out[static_cast<size_t>(r) * p.width + i] = static_cast<float>(gate / (1.0 + std::exp(-gate)) * up);
    }
  }
}

}  // namespace kv2::reference
