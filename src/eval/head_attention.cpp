// SPDX-License-Identifier: Apache-2.0
#include "eval/head_attention.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kv2 {
namespace {

using Rows = Eigen::Map<const RowMatrix>;

const float* of_head(const std::vector<float>& values, size_t head, size_t size) {
  return values.empty() ? nullptr : values.data() + head * size;
}

Rows rows_of(const std::vector<float>& values, int64_t first, int64_t n, int64_t d) {
  KV2_CHECK(static_cast<size_t>((first + n) * d) <= values.size(), "rows {} to {} of {} values", first,
            first + n, values.size());
  return Rows(values.data() + first * d, n, d);
}

/// Positions [begin, end) that queries of one page read in one form.
struct Piece {
  int64_t begin, end;
  bool packed;
};

/// The rule's runs for queries of `page`, over positions before `end`.
std::vector<Piece> pieces_of(const Visibility& rule, int page, int64_t end) {
  std::vector<Piece> out;
  for (int64_t j = 0; j * kPageTokens < end; j++) {
    const bool packed = rule.packed(page, static_cast<int>(j));
    const int64_t begin = j * kPageTokens, stop = std::min<int64_t>(begin + kPageTokens, end);
    if (!out.empty() && out.back().packed == packed)
      out.back().end = stop;
    else
      out.push_back({begin, stop, packed});
  }
  return out;
}

/// Row r of s becomes the softmax of its first n[r] logits, zero behind them; returns log Σ exp per row.
std::vector<double> causal_softmax(RowMatrix& s, const std::vector<int64_t>& positions) {
  std::vector<double> log_z(positions.size());
  for (Eigen::Index r = 0; r < s.rows(); r++) {
    const int64_t n = positions[r] + 1;
    auto row = s.row(r).head(n).array();
    const float largest = row.maxCoeff();
    row = (row - largest).exp();
    const double sum = row.cast<double>().sum();
    row *= static_cast<float>(1.0 / sum);
    s.row(r).tail(s.cols() - n).setZero();
    log_z[r] = largest + std::log(sum);
  }
  return log_z;
}

double squared(const RowMatrix& x) {
  return x.cast<double>().squaredNorm();
}

/// Rows of a piece in the form in which the queries read it.
Rows stored_rows(const StoredHead& stored, const Piece& p, std::vector<float> HeadRows::*side,
                 Eigen::Index d) {
  return rows_of((p.packed ? stored.packed : stored.full)->*side, p.begin, p.end - p.begin, d);
}

/// q·k̂ of all positions before `end`, [n, end].
RowMatrix stored_logits(const RowMatrix& q, const StoredHead& stored, const std::vector<Piece>& pieces,
                        int64_t end) {
  RowMatrix out(q.rows(), end);
  const RowMatrix q_stored = stored.k.query_rows(q);
  for (const Piece& p : pieces)
    out.middleCols(p.begin, p.end - p.begin) =
        q_stored * stored_rows(stored, p, &HeadRows::k, q.cols()).transpose();
  if (stored.k.mean.size() > 0) {  // the same at every key: softmax does not see it, the logits do
    const Eigen::VectorXf shift = q * stored.k.mean.transpose();
    out.colwise() += shift;
  }
  return out;
}

/// weights·v̂ in the cache's basis, [n, head_dim].
RowMatrix stored_output(const RowMatrix& weights, const StoredHead& stored,
                        const std::vector<Piece>& pieces) {
  const Eigen::Index d = static_cast<Eigen::Index>(stored.v.head_dim);
  RowMatrix out = RowMatrix::Zero(weights.rows(), d);
  for (const Piece& p : pieces)
    out += weights.middleCols(p.begin, p.end - p.begin) * stored_rows(stored, p, &HeadRows::v, d);
  return out;
}

void add_logit_errors(const RowMatrix& s, const RowMatrix& error, const std::vector<Piece>& pieces,
                      AttentionError& out) {
  for (const Piece& p : pieces) {
    if (!p.packed) continue;  // one run, between sink and recent
    const RowMatrix logits = s.middleCols(p.begin, p.end - p.begin);
    const Eigen::VectorXf mean = logits.rowwise().mean();
    out.pairs += logits.size();
    out.logit_error2 += squared(error.middleCols(p.begin, p.end - p.begin));
    out.logit_spread2 += squared(logits.colwise() - mean);
  }
}

void add_weighted_errors(const RowMatrix& weights, const RowMatrix& stored_weights, const RowMatrix& error,
                         const std::vector<Piece>& pieces, AttentionError& out) {
  for (const Piece& p : pieces) {
    if (!p.packed) continue;
    const Eigen::MatrixXd w = weights.middleCols(p.begin, p.end - p.begin).cast<double>();
    out.history_mass += w.sum();
    out.stored_mass += stored_weights.middleCols(p.begin, p.end - p.begin).cast<double>().sum();
    out.weighted_error2 +=
        w.cwiseProduct(error.middleCols(p.begin, p.end - p.begin).cast<double>().cwiseAbs2()).sum();
  }
}

}  // namespace

HeadBasis::HeadBasis(const Transform& t, int kv_head)
    : head_dim(t.head_dim), decode(nullptr, 0, 0), mean(nullptr, 0) {
  const size_t d = t.head_dim, h = kv_head;
  using Matrix = Eigen::Map<const RowMatrix>;
  using Vector = Eigen::Map<const Eigen::RowVectorXf>;
  if (!t.decode.empty()) new (&decode) Matrix(of_head(t.decode, h, d * d), d, d);
  if (!t.mean.empty()) new (&mean) Vector(of_head(t.mean, h, d), d);
}

RowMatrix HeadBasis::decode_rows(const RowMatrix& stored) const {
  RowMatrix out = decode.rows() == 0 ? stored : RowMatrix(stored * decode);
  if (mean.size() > 0) out.rowwise() += mean;
  return out;
}

RowMatrix HeadBasis::query_rows(const RowMatrix& q) const {
  return decode.rows() == 0 ? q : RowMatrix(q * decode.transpose());
}

AttentionError attention_error(const PageQueries& queries, const HeadRows& exact, const StoredHead& stored,
                               const Visibility& rule) {
  const Eigen::Index n_rows = queries.q.rows(), d = queries.q.cols();
  KV2_CHECK(n_rows > 0 && queries.positions.size() == static_cast<size_t>(n_rows));
  const int64_t end = *std::max_element(queries.positions.begin(), queries.positions.end()) + 1;
  const std::vector<Piece> pieces = pieces_of(rule, queries.page, end);

  AttentionError out;
  out.queries = n_rows;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  RowMatrix s = scale * (queries.q * rows_of(exact.k, 0, end, d).transpose());
  RowMatrix stored_s = scale * stored_logits(queries.q, stored, pieces, end);
  const RowMatrix error = stored_s - s;
  add_logit_errors(s, error, pieces, out);
  const std::vector<double> log_z = causal_softmax(s, queries.positions);
  const std::vector<double> stored_log_z = causal_softmax(stored_s, queries.positions);
  for (Eigen::Index r = 0; r < n_rows; r++) {  // Σ S·(log S − log Ŝ), log S = s − log z
    const int64_t n = queries.positions[r] + 1;
    const double mean_error =
        s.row(r).head(n).cast<double>().cwiseProduct(error.row(r).head(n).cast<double>()).sum();
    out.kl += std::max(0.0, stored_log_z[r] - log_z[r] - mean_error);
  }
  add_weighted_errors(s, stored_s, error, pieces, out);

  const Rows v = rows_of(exact.v, 0, end, d);
  const RowMatrix o = s * v;
  out.output2 = squared(o);
  out.output_error2 = squared(stored.v.decode_rows(stored_output(stored_s, stored, pieces)) - o);
  out.output_error_k2 = squared(stored_s * v - o);
  out.output_error_v2 = squared(stored.v.decode_rows(stored_output(s, stored, pieces)) - o);
  return out;
}

RowErrors::RowErrors(int head_dim)
    : key_error_(Eigen::MatrixXd::Zero(head_dim, head_dim)),
      key_moment_(key_error_),
      key_sum_(Eigen::RowVectorXd::Zero(head_dim)),
      value_sum_(key_sum_) {}

void RowErrors::add(const RowMatrix& k, const RowMatrix& k_stored, const RowMatrix& v,
                    const RowMatrix& v_stored, std::span<const float> value_metric) {
  const Eigen::Index d = k.cols();
  const Eigen::MatrixXd keys = k.cast<double>(), values = v.cast<double>(),
                        key_error = k_stored.cast<double>() - keys,
                        value_error = v_stored.cast<double>() - values,
                        metric = Rows(value_metric.data(), d, d).cast<double>();
  key_error_.noalias() += key_error.transpose() * key_error;
  key_moment_.noalias() += keys.transpose() * keys;
  key_sum_ += keys.colwise().sum();
  value_sum_ += values.colwise().sum();
  value_error_ += (value_error * metric).cwiseProduct(value_error).sum();
  value_moment_ += (values * metric).cwiseProduct(values).sum();
  n_ += k.rows();
}

void RowErrors::finish(const Eigen::MatrixXd& c_q, std::span<const float> value_metric,
                       AttentionError& out) const {
  if (n_ == 0) return;
  const double d = static_cast<double>(c_q.rows()), n = static_cast<double>(n_);
  const Eigen::MatrixXd metric = Rows(value_metric.data(), c_q.rows(), c_q.rows()).cast<double>();
  out.key_error = c_q.cwiseProduct(key_error_).sum() / d;
  out.key_energy = (c_q.cwiseProduct(key_moment_).sum() - (key_sum_ * c_q).dot(key_sum_) / n) / d;
  out.value_error = value_error_;
  out.value_energy = value_moment_ - (value_sum_ * metric).dot(value_sum_) / n;
}

}  // namespace kv2
