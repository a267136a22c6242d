// SPDX-License-Identifier: Apache-2.0
#include "eval/attention_error.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/check.h"
#include "base/log.h"
#include "base/threads.h"
#include "calibrate/sequence_walk.h"
#include "calibrate/value_metric.h"
#include "eval/head_attention.h"
#include "eval/history.h"
#include "eval/stored_rows.h"

namespace kv2 {
namespace {

double ratio(double a, double b) {
  return b > 0 ? a / b : 0;
}

/// One method: its cache and what was summed so far.
struct Judged {
  CacheSpec spec;
  std::unique_ptr<StoredRows> rows;
  Visibility rule;
  int64_t n_packed = 0;                   // pages whose keys and values were judged
  std::vector<RowErrors> row_errors;      // [n_layers, n_kv_heads]
  std::vector<AttentionError> attention;  // [n_layers, n_kv_heads]
  HeadRows full, packed;                  // of the KV head at hand
};

/// Walks behind a bf16 forward and judges every layer as it comes.
class AttentionJudge final : public Observer {
 public:
  AttentionJudge(Model& model, const std::vector<CacheSpec>& specs, const Calibration* calibration,
                 int64_t context, int chunk, const AttentionErrorOptions& options, int64_t first_position)
      : shape_(model.config().kv_shape()),
        first_position_(first_position),
        stride_(options.query_stride),
        team_(options.n_threads),
        exact_(model, CacheSpec::parse("bf16"), nullptr, context, chunk) {
    const size_t heads = static_cast<size_t>(shape_.n_layers) * shape_.n_kv_heads;
    for (const CacheSpec& spec : specs) {
      Judged j;
      j.spec = spec;
      j.rows = std::make_unique<StoredRows>(model, spec, calibration, context, chunk);
      j.rule = j.rows->cache().rule();
      j.n_packed = j.rule.sink_pages;
      j.row_errors.assign(heads, RowErrors(shape_.head_dim));
      j.attention.resize(heads);
      judged_.push_back(std::move(j));
    }
    c_q_.assign(heads, Eigen::MatrixXd::Zero(shape_.head_dim, shape_.head_dim));
    for (int l = 0; l < shape_.n_layers; l++) value_metrics_.push_back(value_metric(model, l, team_));
  }

  void begin(int n_rows) {
    exact_.begin(n_rows);
    for (Judged& j : judged_) j.rows->begin(n_rows);
  }

  void on_layer(const LayerActivations& a) override {
    exact_.store(a);
    for (Judged& j : judged_) j.rows->store(a);
    for (int head = 0; head < shape_.n_kv_heads; head++) judge_head(a, head);
  }

  void commit(int64_t end) {
    exact_.commit();
    for (Judged& j : judged_) {
      j.rows->commit();
      j.n_packed = std::max(j.n_packed, packed_end(j, end));
    }
    n_tokens_ = end;
  }

  AttentionErrorResult result(int method) const {
    const Judged& j = judged_[method];
    AttentionErrorResult out;
    out.method = j.spec.method_text();
    out.history_bits = j.rows->cache().plan().layout.history_bits();
    out.tokens = n_tokens_;
    out.first_position = first_position_;
    out.sink = j.spec.sink_tokens;
    out.recent = j.spec.recent_tokens;
    out.n_layers = shape_.n_layers;
    out.n_kv_heads = shape_.n_kv_heads;
    out.heads = j.attention;
    for (size_t i = 0; i < out.heads.size(); i++)
      j.row_errors[i].finish(
          c_q_[i] / static_cast<double>(n_tokens_ * shape_.q_per_kv()),
          metric_of(static_cast<int>(i) / shape_.n_kv_heads, static_cast<int>(i) % shape_.n_kv_heads),
          out.heads[i]);
    return out;
  }

 private:
  /// Pages before this one are packed when the next query is at position `end`.
  static int64_t packed_end(const Judged& j, int64_t end) {
    return j.rule.quantized ? end / kPageTokens - j.rule.recent_pages : 0;
  }
  std::span<const float> metric_of(int layer, int head) const {
    const size_t size = static_cast<size_t>(shape_.head_dim) * shape_.head_dim;
    return std::span(value_metrics_[layer]).subspan(head * size, size);
  }

  /// The queries of one KV head, [n_rows·q_per_kv, head_dim].
  RowMatrix queries_of(const LayerActivations& a, int head) const {
    const int per_kv = shape_.q_per_kv(), d = shape_.head_dim;
    RowMatrix q(static_cast<Eigen::Index>(a.n_rows) * per_kv, d);
    for (int row = 0; row < a.n_rows; row++)
      for (int g = 0; g < per_kv; g++)
        q.row(static_cast<Eigen::Index>(row) * per_kv + g) = Eigen::Map<const Eigen::RowVectorXf>(
            a.q + (static_cast<size_t>(row) * shape_.n_heads + head * per_kv + g) * d, d);
    return q;
  }

  /// Those that are asked, page by page.
  std::vector<PageQueries> sample(const LayerActivations& a, const RowMatrix& q) const {
    std::vector<std::vector<int>> rows_of_page;
    std::vector<PageQueries> out;
    const int per_kv = shape_.q_per_kv();
    for (int row = 0; row < a.n_rows; row++) {
      const int64_t position = a.positions[row];
      if (position < first_position_ || position % stride_ != stride_ - 1) continue;
      const int page = static_cast<int>(position / kPageTokens);
      if (out.empty() || out.back().page != page) {
        out.push_back({.page = page, .q = {}, .positions = {}});
        rows_of_page.emplace_back();
      }
      rows_of_page.back().push_back(row);
      out.back().positions.insert(out.back().positions.end(), per_kv, position);
    }
    for (size_t i = 0; i < out.size(); i++) {
      out[i].q.resize(static_cast<Eigen::Index>(out[i].positions.size()), q.cols());
      for (size_t r = 0; r < rows_of_page[i].size(); r++)
        out[i].q.middleRows(static_cast<Eigen::Index>(r) * per_kv, per_kv) =
            q.middleRows(static_cast<Eigen::Index>(rows_of_page[i][r]) * per_kv, per_kv);
    }
    return out;
  }

  void judge_head(const LayerActivations& a, int head) {
    const size_t index = static_cast<size_t>(a.layer) * shape_.n_kv_heads + head;
    const RowMatrix q = queries_of(a, head);
    const Eigen::MatrixXd wide = q.cast<double>();
    c_q_[index].noalias() += wide.transpose() * wide;
    const std::vector<PageQueries> queries = sample(a, q);
    const int64_t end = a.positions.back() + 1, n_pages = pages_of(end);
    exact_rows_.resize(n_pages * kPageTokens, shape_.head_dim);
    for (int64_t page = 0; page < n_pages; page++)
      KV2_CHECK(exact_.read_full(page, a.layer, head, exact_rows_), "a bf16 cache without page {}", page);
    for (Judged& j : judged_) {
      read(j, a.layer, head, n_pages);
      add_rows(j, a.layer, head, end);
      const LayerTransforms& t = j.rows->transforms(a.layer);
      const StoredHead stored{&j.full, &j.packed, HeadBasis(t.k, head), HeadBasis(t.v, head)};
      std::vector<AttentionError> of_page(queries.size());
      team_.run(static_cast<int64_t>(queries.size()), [&](int64_t i, int) {
        of_page[i] = attention_error(queries[i], exact_rows_, stored, j.rule);
      });
      for (const AttentionError& e : of_page) j.attention[index] += e;  // in order, whoever computed it
    }
  }

  /// Every page in every form that is held.
  void read(Judged& j, int layer, int head, int64_t n_pages) {
    j.full.resize(n_pages * kPageTokens, shape_.head_dim);
    j.packed.resize(n_pages * kPageTokens, shape_.head_dim);
    for (int64_t page = 0; page < n_pages; page++) {
      const bool full = j.rows->read_full(page, layer, head, j.full);
      const bool packed = j.rows->read_packed(page, layer, head, j.packed);
      KV2_CHECK(full || packed, "page {} is held in no form", page);
    }
  }

  /// Judges the pages that were packed in this forward.
  void add_rows(Judged& j, int layer, int head, int64_t end) {
    const int d = shape_.head_dim;
    const LayerTransforms& t = j.rows->transforms(layer);
    const HeadBasis k(t.k, head), v(t.v, head);
    const auto page_rows = [&](const std::vector<float>& rows, int64_t page) {
      return RowMatrix(Eigen::Map<const RowMatrix>(rows.data() + page * kPageTokens * d, kPageTokens, d));
    };
    for (int64_t page = j.n_packed; page < packed_end(j, end); page++)
      j.row_errors[static_cast<size_t>(layer) * shape_.n_kv_heads + head].add(
          page_rows(exact_rows_.k, page), k.decode_rows(page_rows(j.packed.k, page)),
          page_rows(exact_rows_.v, page), v.decode_rows(page_rows(j.packed.v, page)), metric_of(layer, head));
  }

  KvShape shape_;
  int64_t first_position_, n_tokens_ = 0;
  int stride_;
  ThreadTeam team_;
  StoredRows exact_;  // the bf16 cache that all are compared with
  HeadRows exact_rows_;
  std::vector<Judged> judged_;
  std::vector<Eigen::MatrixXd> c_q_;  // [n_layers, n_kv_heads] Σ qᵀq of all positions
  std::vector<std::vector<float>> value_metrics_;
};

/// First position at which every quantized method has a history, and the checks on what was asked.
int64_t check(const Model& model, std::span<const int32_t> text, const std::vector<CacheSpec>& specs,
              const AttentionErrorOptions& o) {
  if (o.max_tokens < 0 || o.chunk_tokens < 1 || o.query_stride < 1 || o.query_stride > kPageTokens)
    throw_error(
        ErrorCode::BadArgument,
        "attention errors: {} tokens in chunks of {}, every {}th query: supported are 0 or more, 1 or "
        "more, 1 to {}",
        o.max_tokens, o.chunk_tokens, o.query_stride, kPageTokens);
  int64_t first = 0;
  for (const CacheSpec& s : specs) {
    if (!s.method.quantized()) continue;
    if (s.prefill == PrefillPolicy::Exact)
      throw_error(ErrorCode::BadArgument,
                  "attention errors are measured under the rule of visibility; ask with --prefill windowed");
    first = std::max(first, first_position_with_history(s));
  }
  if (static_cast<int64_t>(text.size()) < first + kPageTokens)
    throw_error(ErrorCode::BadArgument,
                "attention errors: the history of these methods begins at position {}: {} or more tokens are "
                "needed, the text has {}; give more text, or keep less in bf16 (--sink, --recent)",
                first, first + kPageTokens, text.size());
  require_tokens(text, model.config(), "attention errors");
  return first;
}

}  // namespace

AttentionError& AttentionError::operator+=(const AttentionError& o) {
  queries += o.queries;
  pairs += o.pairs;
  logit_error2 += o.logit_error2;
  logit_spread2 += o.logit_spread2;
  weighted_error2 += o.weighted_error2;
  kl += o.kl;
  history_mass += o.history_mass;
  stored_mass += o.stored_mass;
  output2 += o.output2;
  output_error2 += o.output_error2;
  output_error_k2 += o.output_error_k2;
  output_error_v2 += o.output_error_v2;
  key_error += o.key_error;
  key_energy += o.key_energy;
  value_error += o.value_error;
  value_energy += o.value_energy;
  return *this;
}

double AttentionError::logit_rms() const {
  return std::sqrt(ratio(logit_error2, static_cast<double>(pairs)));
}
double AttentionError::logit() const {
  return std::sqrt(ratio(logit_error2, logit_spread2));
}
double AttentionError::weighted_logit() const {
  return std::sqrt(ratio(weighted_error2, static_cast<double>(queries)));
}
double AttentionError::attention_kl() const {
  return ratio(kl, static_cast<double>(queries));
}
double AttentionError::mass() const {
  return ratio(history_mass, static_cast<double>(queries));
}
double AttentionError::mass_shift() const {
  const double all = static_cast<double>(queries), odds = ratio(history_mass, all - history_mass),
               stored_odds = ratio(stored_mass, all - stored_mass);
  return odds > 0 && stored_odds > 0 ? std::log(stored_odds / odds) : 0;
}
double AttentionError::output() const {
  return std::sqrt(ratio(output_error2, output2));
}
double AttentionError::output_k() const {
  return std::sqrt(ratio(output_error_k2, output2));
}
double AttentionError::output_v() const {
  return std::sqrt(ratio(output_error_v2, output2));
}
double AttentionError::key() const {
  return std::sqrt(ratio(key_error, key_energy));
}
double AttentionError::value() const {
  return std::sqrt(ratio(value_error, value_energy));
}

AttentionError AttentionErrorResult::layer(int layer) const {
  AttentionError out;
  for (int h = 0; h < n_kv_heads; h++) out += head(layer, h);
  return out;
}

AttentionError AttentionErrorResult::all() const {
  AttentionError out;
  for (const AttentionError& e : heads) out += e;
  return out;
}

std::vector<AttentionErrorResult> measure_attention_error(Model& model, const std::vector<int32_t>& tokens,
                                                          const std::vector<CacheSpec>& specs,
                                                          const Calibration* calibration,
                                                          const AttentionErrorOptions& options) {
  std::span<const int32_t> text(tokens);
  if (options.max_tokens > 0)
    text = text.first(std::min(tokens.size(), static_cast<size_t>(options.max_tokens)));
  const int64_t first = check(model, text, specs, options);
  const int chunk = std::min(options.chunk_tokens, model.max_rows());
  const auto n = static_cast<int64_t>(text.size());
  AttentionJudge judge(model, specs, calibration, n, chunk, options, first);
  SequenceWalk walk(model, CacheSpec::parse("bf16"), nullptr, n, chunk);
  walk.restart(0);
  Progress progress("attend", n);
  for (int64_t begin = 0; begin < n; begin += chunk) {
    throw_if_interrupted();
    const auto piece = text.subspan(begin, std::min<int64_t>(chunk, n - begin));
    judge.begin(static_cast<int>(piece.size()));
    walk.advance(piece, {}, &judge);
    judge.commit(begin + static_cast<int64_t>(piece.size()));
    progress.advance(static_cast<int64_t>(piece.size()));
  }
  std::vector<AttentionErrorResult> out;
  for (size_t i = 0; i < specs.size(); i++) out.push_back(judge.result(static_cast<int>(i)));
  return out;
}

}  // namespace kv2
