// SPDX-License-Identifier: Apache-2.0
// A random metric with a decaying spectrum, its tables, and G itself for oracles. For tests only.
#pragma once

#include <Eigen/Dense>
#include <cmath>
#include <random>
#include <vector>

#include "quant/feedback/factors.h"
#include "quant/transform.h"

namespace kv2::testing {

struct TestMetric {
  static constexpr double kDamp = 0.02;
  int d;
  std::vector<float> metric;  // [d, d], in the model's basis
  FeedbackFactors factors;
  Eigen::MatrixXd g;  // normalised and damped, in the basis of the codes

  /// `decay`: eigenvalues fall like e^(−decay·i/d).
  TestMetric(int d, int group, std::mt19937& rng, double decay, bool rotated) : d(d) {
    std::normal_distribution<double> normal;
    Eigen::MatrixXd a(d, d);
    for (int i = 0; i < d; ++i)
      for (int j = 0; j < d; ++j) a(i, j) = normal(rng) * std::exp(-0.5 * decay * i / d);
    const Eigen::MatrixXd m = 40.0 / d * a.transpose() * a;
    metric.resize(static_cast<size_t>(d) * d);
    for (int i = 0; i < d; ++i)
      for (int j = 0; j < d; ++j) metric[static_cast<size_t>(i) * d + j] = static_cast<float>(m(i, j));
    const Transform t = rotated ? hadamard_transform(1, d) : identity_transform(1, d);
    factors = fit_feedback(metric, t, group, kDamp);
    Eigen::MatrixXd decode = Eigen::MatrixXd::Identity(d, d);
    if (rotated)
      for (int i = 0; i < d; ++i)
        for (int j = 0; j < d; ++j) decode(i, j) = t.decode[static_cast<size_t>(i) * d + j];
    g = decode * m * decode.transpose();
    g = (g / (g.trace() / d) + kDamp * Eigen::MatrixXd::Identity(d, d)).eval();
  }

  double error(const std::vector<double>& e) const {
    const Eigen::Map<const Eigen::VectorXd> v(e.data(), d);
    return v.dot(g * v);
  }
};

}  // namespace kv2::testing
