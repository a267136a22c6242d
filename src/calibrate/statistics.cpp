// SPDX-License-Identifier: Apache-2.0
#include "calibrate/statistics.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace kv2 {
namespace {

using Matrix = Eigen::MatrixXd;  // column-major: a column is one token's vector
using Map = Eigen::Map<Eigen::MatrixXd>;
using ConstMap = Eigen::Map<const Eigen::MatrixXd>;
constexpr int64_t kBlock =
    128;  // vectors converted to double at a time: d=128 gives 128 KB, in the second cache

/// Vectors of one KV head inside rows of all heads: `per_row` of them side by side in each of n_rows rows.
struct HeadVectors {
  const float* first;
  int64_t n_rows, row_stride;
  int per_row, head_dim;

  int64_t size() const { return n_rows * per_row; }
  void load(int64_t begin, int64_t n, Matrix& block) const {
    block.resize(head_dim, n);
    for (int64_t i = 0; i < n; i++) {
      const int64_t row = (begin + i) / per_row, in_row = (begin + i) % per_row;
      const float* x = first + row * row_stride + in_row * head_dim;
      for (int c = 0; c < head_dim; c++) block(c, i) = x[c];
    }
  }
};

/// sum += Σ x x' (lower triangle), mean += Σ x where it is wanted.
void add_products(const HeadVectors& vectors, double* sum, double* mean) {
  Map s(sum, vectors.head_dim, vectors.head_dim);
  Matrix block;
  for (int64_t begin = 0; begin < vectors.size(); begin += kBlock) {
    vectors.load(begin, std::min(kBlock, vectors.size() - begin), block);
    s.selfadjointView<Eigen::Lower>().rankUpdate(block);
    if (mean) Eigen::Map<Eigen::VectorXd>(mean, vectors.head_dim) += block.rowwise().sum();
  }
}

/// sum += Σ w v v' with w = k M k'; returns Σ w. M is positive semidefinite, so w enters as its square root.
double add_energy_weighted(const HeadVectors& k, const HeadVectors& v, const double* m, double* sum) {
  const int d = k.head_dim;
  ConstMap metric(m, d, d);
  Map s(sum, d, d);
  Matrix keys, values, product;
  double total = 0;
  for (int64_t begin = 0; begin < k.size(); begin += kBlock) {
    const int64_t n = std::min(kBlock, k.size() - begin);
    k.load(begin, n, keys);
    v.load(begin, n, values);
    product.noalias() = metric.selfadjointView<Eigen::Lower>() * keys;
    for (int64_t i = 0; i < n; i++) {
      const double w = std::max(0.0, product.col(i).dot(keys.col(i)));
      total += w;
      values.col(i) *= std::sqrt(w);
    }
    s.selfadjointView<Eigen::Lower>().rankUpdate(values);
  }
  return total;
}

/// Lower triangles of sums -> whole matrices of means, float.
std::vector<float> finish(const std::vector<double>& sums, int n_heads, int d,
                          const std::vector<double>& divisor) {
  std::vector<float> out(sums.size());
  for (int h = 0; h < n_heads; h++) {
    ConstMap s(sums.data() + static_cast<size_t>(h) * d * d, d, d);
    float* o = out.data() + static_cast<size_t>(h) * d * d;
    for (int r = 0; r < d; r++)
      for (int c = 0; c < d; c++)
        o[static_cast<size_t>(r) * d + c] =
            static_cast<float>(s(std::max(r, c), std::min(r, c)) / divisor[h]);
  }
  return out;
}

std::vector<float> means(const std::vector<double>& sums, double divisor) {
  std::vector<float> out(sums.size());
  std::transform(sums.begin(), sums.end(), out.begin(),
                 [&](double x) { return static_cast<float>(x / divisor); });
  return out;
}

}  // namespace

Statistics::Statistics(const KvShape& shape, ThreadTeam& team) : shape_(shape), team_(team) {
  KV2_CHECK(shape.n_layers > 0 && shape.n_kv_heads > 0 && shape.head_dim > 0 &&
            shape.n_heads % shape.n_kv_heads == 0);
  const size_t vector = static_cast<size_t>(shape.n_kv_heads) * shape.head_dim,
               matrix = vector * shape.head_dim;
  layers_.resize(shape.n_layers);
  for (Sums& s : layers_) {
    for (auto* m : {&s.c_q, &s.c_s, &s.energy, &s.k, &s.k_pre, &s.v}) m->assign(matrix, 0.0);
    for (auto* x : {&s.k_sum, &s.k_pre_sum, &s.v_sum}) x->assign(vector, 0.0);
    s.energy_weight.assign(shape.n_kv_heads, 0.0);
  }
  chunk_c_q_.resize(matrix);
}

void Statistics::accumulate(const LayerActivations& a, Sums& sums, Part part, int head) {
  const int d = shape_.head_dim, per_kv = shape_.q_per_kv();
  const size_t matrix = static_cast<size_t>(head) * d * d, vector = static_cast<size_t>(head) * d;
  const int64_t q_stride = static_cast<int64_t>(shape_.n_heads) * d,
                kv_stride = static_cast<int64_t>(shape_.n_kv_heads) * d;
  const auto queries = [&](const float* x) {
    return HeadVectors{x + vector * per_kv, a.n_rows, q_stride, per_kv, d};
  };
  const auto rows = [&](const float* x) { return HeadVectors{x + vector, a.n_rows, kv_stride, 1, d}; };
  switch (part) {
    case Part::Q:
      return add_products(queries(a.q), chunk_c_q_.data() + matrix, nullptr);
    case Part::Out:
      return add_products(queries(a.attention_out), sums.c_s.data() + matrix, nullptr);
    case Part::K:
      return add_products(rows(a.k), sums.k.data() + matrix, sums.k_sum.data() + vector);
    case Part::KPre:
      return add_products(rows(a.k_before_rope), sums.k_pre.data() + matrix, sums.k_pre_sum.data() + vector);
    case Part::V:
      return add_products(rows(a.v), sums.v.data() + matrix, sums.v_sum.data() + vector);
    case Part::Energy: {
      if (sums.n_tokens == 0) return;  // no M yet
      // M as a mean, so that weights of different chunks compare.
      std::vector<double> m(sums.c_q.begin() + matrix,
                            sums.c_q.begin() + matrix + static_cast<size_t>(d) * d);
      for (double& x : m) x /= static_cast<double>(sums.n_tokens) * per_kv;
      sums.energy_weight[head] +=
          add_energy_weighted(rows(a.k), rows(a.v), m.data(), sums.energy.data() + matrix);
      return;
    }
  }
}

void Statistics::on_layer(const LayerActivations& a) {
  KV2_CHECK(a.layer >= 0 && a.layer < shape_.n_layers, "layer {} of {}", a.layer, shape_.n_layers);
  Sums& sums = layers_[a.layer];
  std::fill(chunk_c_q_.begin(), chunk_c_q_.end(), 0.0);
  // Every task owns its sums, so that neither the number of threads nor their order changes a bit.
  team_.run(static_cast<int64_t>(kParts) * shape_.n_kv_heads, [&](int64_t index, int) {
    accumulate(a, sums, static_cast<Part>(index / shape_.n_kv_heads),
               static_cast<int>(index % shape_.n_kv_heads));
  });
  for (size_t i = 0; i < chunk_c_q_.size(); i++) sums.c_q[i] += chunk_c_q_[i];
  sums.n_tokens += a.n_rows;
  require_finite(sums, a.layer);
}

void Statistics::require_finite(const Sums& sums, int layer) const {
  const size_t d = static_cast<size_t>(shape_.head_dim);
  const std::pair<const char*, const std::vector<double>*> all[] = {{"queries", &sums.c_q},
                                                                    {"keys before RoPE", &sums.k_pre},
                                                                    {"keys", &sums.k},
                                                                    {"values", &sums.v},
                                                                    {"attention's output", &sums.c_s}};
  for (const auto& [what, sum] : all)  // the squares of every channel: no vector that is not finite hides
    for (size_t i = 0; i < sum->size() / d; i++)
      if (const double x = (*sum)[i * d + i % d]; !std::isfinite(static_cast<float>(x)))
        throw_error(ErrorCode::BadFile,
                    "calibration: layer {}: the squares of {} add up to {}: weights of the model overflow or "
                    "are damaged",
                    layer, what, x);
}

int64_t Statistics::n_tokens() const {
  return layers_.front().n_tokens;
}

LayerCalibration Statistics::layer(int layer) const {
  const Sums& s = layers_.at(layer);
  KV2_CHECK(s.n_tokens > 0, "no activations of layer {}", layer);
  const int heads = shape_.n_kv_heads, d = shape_.head_dim;
  const double n = static_cast<double>(s.n_tokens);
  const std::vector<double> per_token(heads, n), per_query(heads, n * shape_.q_per_kv());
  LayerCalibration out;
  out.c_q = finish(s.c_q, heads, d, per_query);
  out.c_s = finish(s.c_s, heads, d, per_query);
  out.k_cov = finish(s.k, heads, d, per_token);
  out.k_pre_cov = finish(s.k_pre, heads, d, per_token);
  out.v_cov = finish(s.v, heads, d, per_token);
  const bool weighted =
      std::all_of(s.energy_weight.begin(), s.energy_weight.end(), [](double w) { return w > 0; });
  out.c_s_energy = weighted ? finish(s.energy, heads, d, s.energy_weight) : out.v_cov;
  out.k_mean = means(s.k_sum, n);
  out.k_pre_mean = means(s.k_pre_sum, n);
  out.v_mean = means(s.v_sum, n);
  return out;
}

}  // namespace kv2
