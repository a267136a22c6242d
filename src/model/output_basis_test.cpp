// SPDX-License-Identifier: Apache-2.0
// W_o that has absorbed a basis, against the op `transform` and W_o as it was: the same product, and not that
// of another convention.
#include "model/output_basis.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/cases/inputs.h"
#include "ops/reference/reference.h"

namespace kv2 {
namespace {

using cases::Random;

constexpr int kHeads = 6, kKvHeads = 2, kDim = 16, kIn = kHeads * kDim, kRows = 5;
/// Relative, of sums of 16 f32 products; 1.3e-7 was seen, and 2e-2 and more of other conventions.
constexpr double kSame = 1e-6;

class OutputBasisOf : public testing::TestWithParam<int> {  // n_out: tasks of 16 rows, on one thread or more
 protected:
  OutputBasisOf() {
    Random random(11);
    v_ = {.n_kv_heads = kKvHeads, .head_dim = kDim};
    v_.decode = random.normals(kKvHeads * kDim * kDim, 0, 0.3f);  // far from orthogonal and symmetric
    v_.mean = random.normals(kKvHeads * kDim, 0.5f, 0.5f);
    weights_ = random.normals(size_t(GetParam()) * kIn, 0, 1);
    bias_ = random.normals(GetParam(), 0, 1);
    attention_ = random.normals(kRows * kIn, 0, 1);
  }

  std::vector<float> product(const std::vector<float>& in, const std::vector<float>& weights,
                             const std::vector<float>& bias) const {
    const auto fill = [&](int row0, int n, float* out) {
      std::copy_n(weights.begin() + size_t(row0) * kIn, size_t(n) * kIn, out);
    };
    const auto linear = backend_->make_linear({kIn, GetParam(), fill, bias});
    std::vector<float> out(size_t(kRows) * GetParam());
    backend_->linear(*linear, {in.data(), out.data(), kRows});
    return out;
  }
  /// The way back as an op of its own.
  std::vector<float> expected() const {
    std::vector<float> back(attention_.size());
    backend_->transform({.in = attention_.data(),
                         .out = back.data(),
                         .matrix = v_.decode.data(),
                         .mean = nullptr,
                         .add = v_.mean.data(),
                         .n_rows = kRows,
                         .n_heads = kHeads,
                         .n_kv_heads = kKvHeads,
                         .head_dim = kDim});
    return product(back, weights_, bias_);
  }
  std::vector<float> absorbed(const Transform& v) const {
    const OutputBasis basis(v, kHeads);
    std::vector<float> weights = weights_, bias = bias_;
    if (basis.has_mean()) basis.add_mean(weights.data(), GetParam(), bias.data());
    basis.absorb(weights.data(), GetParam());
    return product(attention_, weights, bias);
  }
  static double difference(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0, all = 0;
    for (size_t i = 0; i < a.size(); i++) sum += std::pow(double{a[i]} - b[i], 2), all += b[i] * double{b[i]};
    return std::sqrt(sum / all);
  }

  std::unique_ptr<Backend> backend_ = make_reference_backend(LinearPrecision::F32);
  Transform v_;
  std::vector<float> weights_, bias_, attention_;
};

TEST_P(OutputBasisOf, GivesTheProductOfTheWayBack) {
  EXPECT_LT(difference(absorbed(v_), expected()), kSame);
}

TEST_P(OutputBasisOf, AnotherConventionGivesAnotherProduct) {
  const std::vector<float> right = expected();
  const size_t matrix = kDim * kDim;
  Transform transposed = v_, other_heads = v_, other_means = v_, no_means = v_;
  for (int h = 0; h < kKvHeads; h++)
    for (size_t i = 0; i < kDim; i++)
      for (size_t j = 0; j < kDim; j++)
        transposed.decode[h * matrix + i * kDim + j] = v_.decode[h * matrix + j * kDim + i];
  std::swap_ranges(other_heads.decode.begin(), other_heads.decode.begin() + matrix,
                   other_heads.decode.begin() + matrix);
  std::swap_ranges(other_means.mean.begin(), other_means.mean.begin() + kDim,
                   other_means.mean.begin() + kDim);
  no_means.mean.clear();
  for (const Transform& wrong : {transposed, other_heads, other_means, no_means})
    EXPECT_GT(difference(absorbed(wrong), right), 1e4 * kSame);
}

INSTANTIATE_TEST_SUITE_P(Rows, OutputBasisOf, testing::Values(1, 40, 300));

}  // namespace
}  // namespace kv2
