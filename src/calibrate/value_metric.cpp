// SPDX-License-Identifier: Apache-2.0
#include "calibrate/value_metric.h"

#include <Eigen/Core>

namespace kv2 {

std::vector<float> value_metric(const Model& model, int layer, ThreadTeam& team) {
  using Weights = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const ModelConfig& c = model.config();
  const KvShape shape = c.kv_shape();
  const int d = shape.head_dim, per_kv = shape.q_per_kv();
  Weights w_o(c.hidden, static_cast<Eigen::Index>(shape.n_heads) * d);
  model.read_output_projection(layer, w_o.data());
  std::vector<float> out(static_cast<size_t>(shape.n_kv_heads) * d * d);
  team.run(shape.n_kv_heads, [&](int64_t head, int) {
    Eigen::MatrixXd sum = Eigen::MatrixXd::Zero(d, d);
    for (int r = 0; r < per_kv; ++r) {
      const Eigen::MatrixXd block = w_o.middleCols((head * per_kv + r) * d, d).cast<double>();
      sum.selfadjointView<Eigen::Lower>().rankUpdate(block.transpose());
    }
    float* m = out.data() + static_cast<size_t>(head) * d * d;
    for (int i = 0; i < d; ++i)
      for (int j = 0; j < d; ++j) m[i * d + j] = static_cast<float>(sum(std::max(i, j), std::min(i, j)));
  });
  return out;
}

}  // namespace kv2
