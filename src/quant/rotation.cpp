// SPDX-License-Identifier: Apache-2.0
// R = U·H·P in double precision. Eigenvalues only order the columns of U, they never scale them; after H
// every channel carries the same importance tr(C)/d, and P spreads the columns over the groups of the coder.
#include "quant/rotation.h"

#include <Eigen/Dense>
#include <cmath>

#include "base/check.h"

namespace kv2 {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Matrix symmetric(std::span<const float> values, int d) {
  Matrix matrix(d, d);
  for (int i = 0; i < d; ++i) {
    for (int j = 0; j < d; ++j) {
      const double x = values[static_cast<size_t>(i) * d + j];
      if (!std::isfinite(x)) {
        throw_error(ErrorCode::BadFile,
                    "covariance: element [{}, {}] is {}, expected finite numbers; run `kv2 calibrate` again",
                    i, j, x);
      }
      matrix(i, j) = x;
    }
  }
  return 0.5 * (matrix + matrix.transpose());
}

/// Eigenvectors as columns, ascending eigenvalues, the entry of largest magnitude (the first of equals)
/// positive.
Matrix eigenvectors(const Matrix& covariance, Eigen::VectorXd* eigenvalues) {
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver{Eigen::MatrixXd(covariance)};
  if (solver.info() != Eigen::Success) {
    throw_error(ErrorCode::BadFile, "covariance: its eigenvectors were not found; run `kv2 calibrate` again");
  }
  Matrix u = solver.eigenvectors();
  for (Eigen::Index j = 0; j < u.cols(); ++j) {
    Eigen::Index largest = 0;
    u.col(j).cwiseAbs().maxCoeff(&largest);
    if (u(largest, j) < 0) u.col(j) = -u.col(j);
  }
  if (eigenvalues) *eigenvalues = solver.eigenvalues();
  return u;
}

/// r·H·P as the recipe says.
Matrix spread(Matrix r, RotationRecipe recipe) {
  const int d = static_cast<int>(r.rows());
  if (recipe == RotationRecipe::U) return r;
  const std::vector<double> h = hadamard(d);
  r = r * Eigen::Map<const Matrix>(h.data(), d, d);
  const bool power_of_two = (d & (d - 1)) == 0;
  if (recipe == RotationRecipe::UH || !power_of_two) return r;
  const std::vector<int> perm = bit_reversal_permutation(d);
  Matrix permuted(d, d);
  for (int j = 0; j < d; ++j) permuted.col(j) = r.col(perm[j]);
  return permuted;
}

Matrix rotation(const Matrix& covariance, RotationRecipe recipe) {
  return spread(eigenvectors(covariance, nullptr), recipe);
}

struct Basis {
  Matrix encode, decode;
};

Basis rotated(const Matrix& covariance, RotationRecipe recipe) {
  const Matrix r = rotation(covariance, recipe);
  return {r, r.transpose()};
}

constexpr double kFloor = 0.05;  // of the mean eigenvalue: directions that calibration hardly saw stay tame

Basis whitened(const Matrix& covariance, RotationRecipe recipe, double exponent) {
  Eigen::VectorXd values;
  const Matrix u = eigenvectors(covariance, &values);
  const double mean = std::max(covariance.trace(), 0.0) / static_cast<double>(covariance.rows());
  if (!(mean > 0)) return rotated(covariance, recipe);
  const Eigen::VectorXd scale = (values.cwiseMax(0.0).array() / mean + kFloor)
                                    .pow(0.5 * exponent)
                                    .matrix();  // about 1: bf16 rows stay in range
  const Matrix encode = spread(u * scale.cwiseInverse().asDiagonal(), recipe);
  const Matrix decode = spread(u * scale.asDiagonal(), recipe).transpose();
  return {encode, decode};
}

/// `fit` of every head's covariance, or of their mean for all heads.
template <class Fit>
Transform fit_heads(std::span<const float> covariances, int n_kv_heads, int head_dim, RotationSharing sharing,
                    const Fit& fit) {
  const size_t d = static_cast<size_t>(head_dim), square = d * d;
  KV2_CHECK(n_kv_heads > 0 && covariances.size() == n_kv_heads * square, "{} values for {} heads of {}",
            covariances.size(), n_kv_heads, head_dim);
  const auto covariance = [&](int head) {
    return symmetric(covariances.subspan(head * square, square), head_dim);
  };
  Transform out{.n_kv_heads = n_kv_heads, .head_dim = head_dim};
  Basis shared;
  if (sharing == RotationSharing::Layer) {
    Matrix mean = Matrix::Zero(head_dim, head_dim);
    for (int head = 0; head < n_kv_heads; ++head) mean += covariance(head);
    shared = fit(Matrix(mean / n_kv_heads));
  }
  const auto append = [](const Matrix& m, std::vector<float>& to) {
    for (Eigen::Index i = 0; i < m.size(); ++i) to.push_back(static_cast<float>(m.data()[i]));
  };
  for (int head = 0; head < n_kv_heads; ++head) {
    const Basis basis = sharing == RotationSharing::Layer ? shared : fit(covariance(head));
    append(basis.encode, out.encode);
    append(basis.decode, out.decode);
  }
  return out;
}

}  // namespace

std::vector<int> bit_reversal_permutation(int n) {
  if (n <= 0 || (n & (n - 1)) != 0) {
    throw_error(ErrorCode::Unsupported, "the bit-reversal permutation needs a power of two, found {}", n);
  }
  std::vector<int> perm(n);
  for (int j = 0; j < n; ++j) {
    int reversed = 0;
    for (int bit = 1, rest = j; bit < n; bit *= 2, rest /= 2) reversed = 2 * reversed + rest % 2;
    perm[j] = n - 1 - reversed;
  }
  return perm;
}

std::vector<double> rotation_from_covariance(std::span<const float> covariance, int head_dim,
                                             RotationRecipe recipe) {
  KV2_CHECK(head_dim > 0 && covariance.size() == static_cast<size_t>(head_dim) * head_dim,
            "{} values for head_dim {}", covariance.size(), head_dim);
  const Matrix r = rotation(symmetric(covariance, head_dim), recipe);
  return {r.data(), r.data() + r.size()};
}

Transform calibrated_transform(std::span<const float> covariances, int n_kv_heads, int head_dim,
                               RotationRecipe recipe, RotationSharing sharing) {
  return fit_heads(covariances, n_kv_heads, head_dim, sharing,
                   [&](const Matrix& covariance) { return rotated(covariance, recipe); });
}

Transform whitened_transform(std::span<const float> covariances, int n_kv_heads, int head_dim,
                             RotationRecipe recipe, RotationSharing sharing, double exponent) {
  return fit_heads(covariances, n_kv_heads, head_dim, sharing,
                   [&](const Matrix& covariance) { return whitened(covariance, recipe, exponent); });
}

double inverse_error(const Transform& transform) {
  if (transform.encode.empty()) return 0;
  const Eigen::Index d = transform.head_dim;
  using Floats = Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
  double worst = 0;
  for (int head = 0; head < transform.n_kv_heads; ++head) {
    const Matrix encode = Floats(transform.encode.data() + head * d * d, d, d).cast<double>();
    const Matrix decode = Floats(transform.decode.data() + head * d * d, d, d).cast<double>();
    const Matrix error = encode * decode - Matrix::Identity(d, d);
    if (!error.allFinite()) return INFINITY;
    worst = std::max(worst, error.cwiseAbs().maxCoeff());
  }
  return worst;
}

}  // namespace kv2
