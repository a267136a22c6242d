// SPDX-License-Identifier: Apache-2.0
#include "quant/feedback/factors.h"

#include <Eigen/Dense>
#include <cmath>

#include "base/check.h"

namespace kv2 {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Matrix widened(std::span<const float> values, int d) {
  return Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
             values.data(), d, d)
      .cast<double>();
}

/// U upper triangular with G⁻¹ = UᵀU. With V = U⁻¹, G = V·Vᵀ: the Cholesky factor of G with rows and columns
/// reversed, reversed back; no inverse of G is formed.
Matrix inverse_factor(const Matrix& g) {
  const Eigen::LLT<Matrix> reversed(g.reverse());
  KV2_CHECK(reversed.info() == Eigen::Success, "a damped metric has no Cholesky factor");
  const Matrix v = Matrix(reversed.matrixL()).reverse();
  return v.triangularView<Eigen::Upper>().solve(Matrix::Identity(g.rows(), g.cols()));
}

Matrix in_basis(std::span<const float> metric, std::span<const float> decode, int d, double damp) {
  Matrix g = widened(metric, d);
  g = (g + g.transpose()).eval() / 2;
  if (!decode.empty()) {
    const Matrix basis = widened(decode, d);
    g = basis * g * basis.transpose();
    g = (g + g.transpose()).eval() / 2;  // rounding
  }
  const double mean = g.trace() / d;
  if (!(mean > 0)) return Matrix::Identity(d, d);
  return g / mean + damp * Matrix::Identity(d, d);
}

}  // namespace

FeedbackFactors fit_feedback(std::span<const float> metric, const Transform& transform, int group,
                             double damp) {
  const int d = transform.head_dim, n_groups = d / group;
  const size_t dd = static_cast<size_t>(d) * d;
  KV2_CHECK(d > 0 && group > 0 && d % group == 0 && metric.size() == dd * transform.n_kv_heads,
            "metric of {} values for {} heads of {} in groups of {}", metric.size(), transform.n_kv_heads, d,
            group);
  if (!(damp > 0 && std::isfinite(damp)))
    throw_error(ErrorCode::BadArgument, "the damping of a metric is {}; it must be positive", damp);
  for (const float x : metric)
    if (!std::isfinite(x)) throw_error(ErrorCode::BadFile, "a metric holds a value that is not finite");
  FeedbackFactors out;
  for (int h = 0; h < transform.n_kv_heads; ++h) {
    const std::span<const float> decode =
        transform.decode.empty() ? std::span<const float>() : std::span(transform.decode).subspan(h * dd, dd);
    const Matrix u = inverse_factor(in_basis(metric.subspan(h * dd, dd), decode, d, damp));
    const Eigen::VectorXd diagonal = u.diagonal();
    const Matrix f = diagonal.cwiseInverse().asDiagonal() * u;
    for (int i = 0; i < d; ++i)
      for (int j = 0; j < d; ++j) out.f.push_back(j < i ? 0.0f : static_cast<float>(f(i, j)));
    for (int i = 0; i < d; ++i) out.weight.push_back(static_cast<float>(1 / (diagonal(i) * diagonal(i))));
    for (int g = 0; g < n_groups; ++g) {
      Eigen::RowVectorXd ones = Eigen::RowVectorXd::Zero(d);
      ones.segment(g * group, group).setOnes();
      // t·F = z with F's unit diagonal, so t = z·F⁻¹.
      const Eigen::RowVectorXd swept =
          f.transpose().triangularView<Eigen::Lower>().solve(ones.transpose()).transpose();
      for (int i = 0; i < d; ++i) out.ones.push_back(static_cast<float>(swept(i)));
    }
  }
  return out;
}

}  // namespace kv2
