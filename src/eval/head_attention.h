// SPDX-License-Identifier: Apache-2.0
// The arithmetic behind eval/attention_error: queries of one page against the rows of one KV head, exact and
// as stored. Pure functions of matrices.
#pragma once

#include <Eigen/Core>
#include <span>
#include <vector>

#include "eval/attention_error.h"
#include "eval/stored_rows.h"
#include "ops/params.h"
#include "quant/transform.h"

namespace kv2 {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// One KV head's part of a transform, borrowed. A matrix without rows is the identity, an empty mean zero.
struct HeadBasis {
  HeadBasis(const Transform& t, int kv_head);

  /// Rows in the cache's basis -> the model's.
  RowMatrix decode_rows(const RowMatrix& stored) const;
  /// q' = q·decodeᵀ, so that q·k = q'·k' + q·mean.
  RowMatrix query_rows(const RowMatrix& q) const;

  int head_dim;
  Eigen::Map<const RowMatrix> decode;
  Eigen::Map<const Eigen::RowVectorXf> mean;
};

/// Queries of one page: rows of all query heads of one KV head.
struct PageQueries {
  int page = 0;
  RowMatrix q;                     // [n, head_dim] after RoPE, in the model's basis
  std::vector<int64_t> positions;  // [n], all in `page`
};

/// What one method holds of a KV head: rows as read in full and packed, valid where the rule reads them so.
struct StoredHead {
  const HeadRows *full, *packed;
  HeadBasis k, v;
};

/// The sums that need queries: all of AttentionError but keys' and values' own. `exact`: rows of a bf16 cache
/// in the model's basis.
AttentionError attention_error(const PageQueries& queries, const HeadRows& exact, const StoredHead& stored,
                               const Visibility& rule);

/// Streams what keys' and values' own errors are computed from: packed rows of one KV head against the exact
/// ones.
class RowErrors {
 public:
  explicit RowErrors(int head_dim);

  /// value_metric [head_dim, head_dim] symmetric, the same at every call.
  void add(const RowMatrix& k, const RowMatrix& k_stored, const RowMatrix& v, const RowMatrix& v_stored,
           std::span<const float> value_metric);
  /// Fills key_* and value_* of `out`. c_q: mean qᵀq, [head_dim, head_dim].
  void finish(const Eigen::MatrixXd& c_q, std::span<const float> value_metric, AttentionError& out) const;

 private:
  int64_t n_ = 0;
  Eigen::MatrixXd key_error_, key_moment_;  // Σ eᵀe and Σ kᵀk, symmetric
  Eigen::RowVectorXd key_sum_, value_sum_;
  double value_error_ = 0, value_moment_ = 0;
};

}  // namespace kv2
