// SPDX-License-Identifier: Apache-2.0
// One side of a layer for tests of page codecs: random rows with a mean, a channel that stands out and tokens
// of unequal norm, and what a codec makes of them. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "quant/page_codec.h"

namespace kv2::testing {

struct TestSide {
  KvShape shape;
  std::vector<bf16> rows;  // [heads][64][d]

  TestSide(int heads, int d, unsigned seed, float mean = 0.7f) : shape{1, heads, heads, d} {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0, 1);
    rows.resize(static_cast<size_t>(heads) * kPageTokens * d);
    for (int t = 0; t < kPageTokens; t++) {
      const float size = t % 13 == 5 ? 0.1f : 1.0f + 0.02f * static_cast<float>(t);
      for (int h = 0; h < heads; h++)
        for (int c = 0; c < d; c++)
          rows[index(h, t, c)] =
              to_bf16(size * (normal(rng) * (c == 3 ? 4.0f : 1.0f) + mean * static_cast<float>(c % 3)));
    }
  }
  size_t index(int head, int token, int channel) const {
    return (static_cast<size_t>(head) * kPageTokens + token) * shape.head_dim + channel;
  }
  double at(int head, int token, int channel) const { return to_float(rows[index(head, token, channel)]); }
  PageRows view() const { return {rows.data(), static_cast<size_t>(kPageTokens) * shape.head_dim}; }

  SideFormat resolved(const SideFormat& f) const { return page_codec(f.codec).resolve(f, shape.head_dim); }
  std::vector<std::byte> encode(const SideFormat& f, const Coder& coder = {}) const {
    std::vector<std::byte> page(page_codec(f.codec).bytes(f, shape), std::byte{0xA5});
    page_codec(f.codec).encode({f, shape}, view(), coder, page.data());
    return page;
  }
  /// [heads][64][d]
  std::vector<float> decode(const SideFormat& f, const std::vector<std::byte>& page) const {
    std::vector<float> out(rows.size());
    for (int h = 0; h < shape.n_kv_heads; h++)
      page_codec(f.codec).decode({f, shape}, page.data(), h, out.data() + index(h, 0, 0));
    return out;
  }
};

inline double half(double x) {
  return to_float(to_fp16(static_cast<float>(x)));
}

/// Compares decoded values with a model's. Where a value lies on the border of two codes fp32 and double may
/// choose differently; `step` says by how much that may be off, and only one value in 500 may.
class BorderCount {
 public:
  void expect(double got, double want, double step) {
    n_++;
    if (std::fabs(got - want) <= 2e-6 * (std::fabs(got) + step)) return;
    EXPECT_LE(std::fabs(got - want), 1.01 * step);
    on_border_++;
  }
  ~BorderCount() { EXPECT_LE(on_border_, n_ / 500 + 2) << "of " << n_; }

 private:
  int n_ = 0, on_border_ = 0;
};

}  // namespace kv2::testing
