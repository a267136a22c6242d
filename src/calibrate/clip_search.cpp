// SPDX-License-Identifier: Apache-2.0
#include "calibrate/clip_search.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/float16.h"
#include "quant/coder.h"
#include "quant/int2/int2.h"

namespace kv2 {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Stride = Eigen::OuterStride<>;
using Rows = Eigen::Map<const Matrix, 0, Stride>;
constexpr int kQueryBlock = 64;

Rows rows_of(const float* x, int n_rows, int n_heads, int head, int d) {
  return Rows(x + static_cast<size_t>(head) * d, n_rows, d, Stride(static_cast<Eigen::Index>(n_heads) * d));
}

Eigen::Map<const Matrix> head_matrix(const std::vector<float>& matrices, int head, int d) {
  return Eigen::Map<const Matrix>(matrices.data() + static_cast<size_t>(head) * d * d, d, d);
}

/// (x - mean)·encode of one head, what the cache stores before it rounds to bf16.
Matrix encode(const Rows& x, const Transform& t, int head) {
  const int d = static_cast<int>(x.cols());
  Matrix out = x;
  if (!t.mean.empty())
    out.rowwise() -= Eigen::Map<const Eigen::RowVectorXf>(t.mean.data() + static_cast<size_t>(head) * d, d);
  if (!t.encode.empty()) out = (out * head_matrix(t.encode, head, d)).eval();
  return out;
}

/// y - ŷ of the stored rows y under one clip; rows before `exact` are zero.
void quantization_error(const Matrix& y, const Coder& coder, int exact, Matrix& error) {
  const int n = static_cast<int>(y.rows()), d = static_cast<int>(y.cols()), groups = d / coder.group;
  std::vector<bf16> rows(static_cast<size_t>(kPageTokens) * d);
  std::vector<uint8_t> codes(static_cast<size_t>(kPageTokens) * d / 4);
  std::vector<fp16> params(static_cast<size_t>(kPageTokens) * groups * 2);
  Matrix decoded(kPageTokens, d);
  error.resize(n, d);
  for (int begin = 0; begin < n; begin += kPageTokens) {
    const int used = std::min(kPageTokens, n - begin);
    for (size_t i = 0; i < rows.size(); i++) {
      const int row = static_cast<int>(i / d);
      rows[i] = to_bf16(row < used ? y(begin + row, static_cast<int>(i % d)) : 0.0f);
    }
    int2::encode_rows(rows.data(), d, d, coder, codes.data(), params.data());
    int2::decode_rows(codes.data(), params.data(), d, coder.group, decoded.data());
    error.middleRows(begin, used) = y.middleRows(begin, used) - decoded.topRows(used);
  }
  error.topRows(std::min(exact, n)).setZero();
}

/// Causal softmax of a block of query rows [first, first + rows) over the keys before their ends.
void causal_softmax(Matrix& s, int first) {
  for (int i = 0; i < s.rows(); i++) {
    const int n = first + i + 1;
    auto row = s.row(i).head(n).array();
    row = (row - row.maxCoeff()).exp();
    row /= row.sum();
    s.row(i).tail(s.cols() - n).setZero();
  }
}

struct HeadErrors {
  std::vector<double> k, v;  // [ratios]
};

/// One query head: every ratio's error of its KV head's keys and values.
HeadErrors weigh(const Matrix& q, const Matrix& q_stored, const Rows& k, std::span<const Matrix> k_error,
                 std::span<const Matrix> v_error, int exact) {
  const int n = static_cast<int>(q.rows());
  const float scale = 1.0f / std::sqrt(static_cast<float>(q.cols()));
  HeadErrors out{std::vector<double>(k_error.size(), 0.0), std::vector<double>(v_error.size(), 0.0)};
  Matrix s, e, o;
  for (int first = exact / kQueryBlock * kQueryBlock; first < n; first += kQueryBlock) {
    const int rows = std::min(kQueryBlock, n - first), keys = first + rows, inexact = keys - exact;
    if (inexact <= 0) continue;
    s.noalias() = scale * (q.middleRows(first, rows) * k.topRows(keys).transpose());
    causal_softmax(s, first);
    const auto weights = s.rightCols(inexact);
    for (size_t r = 0; r < k_error.size(); r++) {
      e.noalias() =
          scale * (q_stored.middleRows(first, rows) * k_error[r].middleRows(exact, inexact).transpose());
      out.k[r] += weights.cwiseProduct(e.cwiseAbs2()).rowwise().sum().cast<double>().sum();
      o.noalias() = weights * v_error[r].middleRows(exact, inexact);
      out.v[r] += o.cwiseAbs2().rowwise().sum().cast<double>().sum();
    }
  }
  return out;
}

size_t best_index(const std::vector<double>& errors) {
  size_t best = errors.size() - 1;
  for (size_t i = errors.size(); i-- > 0;)
    if (errors[i] < errors[best]) best = i;
  return best;
}

}  // namespace

std::vector<float> ClipSearch::default_ratios() {
  return {0.70f, 0.75f, 0.80f, 0.84f, 0.88f, 0.92f, 0.94f, 0.96f, 0.98f, 1.0f};
}

ClipSearch::ClipSearch(const KvShape& shape, std::vector<LayerTransforms> transforms,
                       ClipSearchOptions options, ThreadTeam& team)
    : shape_(shape), transforms_(std::move(transforms)), options_(std::move(options)), team_(team) {
  KV2_CHECK(!options_.ratios.empty() && std::is_sorted(options_.ratios.begin(), options_.ratios.end()));
  KV2_CHECK(options_.group > 0 && shape.head_dim % options_.group == 0, "group {}", options_.group);
  if (transforms_.empty())
    transforms_.resize(shape.n_layers, {identity_transform(shape.n_kv_heads, shape.head_dim),
                                        identity_transform(shape.n_kv_heads, shape.head_dim)});
  KV2_CHECK(transforms_.size() == static_cast<size_t>(shape.n_layers));
  const std::vector<double> zero(options_.ratios.size(), 0.0);
  errors_.resize(shape.n_layers, Errors{zero, zero});
}

void ClipSearch::on_layer(const LayerActivations& a) {
  KV2_CHECK(a.layer >= 0 && a.layer < shape_.n_layers, "layer {} of {}", a.layer, shape_.n_layers);
  KV2_CHECK(a.n_rows > 0 && a.positions.front() == 0, "a window in one piece, from position 0");
  const int n = a.n_rows, d = shape_.head_dim, kv_heads = shape_.n_kv_heads, per_kv = shape_.q_per_kv();
  const int exact = static_cast<int>(std::min<int64_t>(options_.exact_tokens, n));
  const size_t n_ratios = options_.ratios.size();
  const LayerTransforms& t = transforms_[a.layer];

  // Errors of the stored rows, [K heads then V heads][ratios]; those of V are brought back to its own basis.
  std::vector<Matrix> errors(2 * static_cast<size_t>(kv_heads) * n_ratios);
  team_.run(2 * kv_heads, [&](int64_t index, int) {
    const bool keys = index < kv_heads;
    const int head = static_cast<int>(index % kv_heads);
    const Transform& transform = keys ? t.k : t.v;
    const Matrix stored = encode(rows_of(keys ? a.k : a.v, n, kv_heads, head, d), transform, head);
    for (size_t r = 0; r < n_ratios; r++) {
      const Coder coder{CoderKind::Round, options_.group, clip_index(options_.ratios[r], d)};
      Matrix& error = errors[index * n_ratios + r];
      quantization_error(stored, coder, exact, error);
      if (!keys && !transform.decode.empty()) error = (error * head_matrix(transform.decode, head, d)).eval();
    }
  });

  std::vector<HeadErrors> by_head(shape_.n_heads);
  team_.run(shape_.n_heads, [&](int64_t index, int) {
    const int head = static_cast<int>(index), kv_head = head / per_kv;
    const Matrix q = rows_of(a.q, n, shape_.n_heads, head, d);
    const Matrix q_stored =
        t.k.decode.empty() ? q : Matrix(q * head_matrix(t.k.decode, kv_head, d).transpose());
    const std::span<const Matrix> all(errors);
    by_head[head] =
        weigh(q, q_stored, rows_of(a.k, n, kv_heads, kv_head, d), all.subspan(kv_head * n_ratios, n_ratios),
              all.subspan((kv_heads + kv_head) * n_ratios, n_ratios), exact);
  });
  for (const HeadErrors& head : by_head)  // in order of heads: the sum does not depend on the threads
    for (size_t r = 0; r < n_ratios; r++) {
      errors_[a.layer].k[r] += head.k[r];
      errors_[a.layer].v[r] += head.v[r];
    }
}

ClipSearch::Clips ClipSearch::best(int layer) const {
  const Errors& e = errors_.at(layer);
  return {options_.ratios[best_index(e.k)], options_.ratios[best_index(e.v)]};
}

}  // namespace kv2
