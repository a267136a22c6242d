// SPDX-License-Identifier: Apache-2.0
#include "eval/token_norms.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/log.h"
#include "calibrate/sequence_walk.h"
#include "eval/head_attention.h"
#include "eval/log_histogram.h"

namespace kv2 {
namespace {

constexpr size_t kFirstTokens = 16;
constexpr char kTensors[] = {'q', 'k', 'v'};

/// Norms of one tensor and layer as they stream by.
struct NormStream {
  LogHistogram tokens;
  double head_min = 0, head_max = 0;
  std::vector<float> first;
  struct Page {
    float min = 0, sum = 0, max = 0;
    int n = 0;
  };
  std::vector<Page> pages;

  void add(std::span<const double> head_norms, int64_t position) {
    double sum = 0;
    if (tokens.count() == 0) head_min = head_norms.front();
    for (const double x : head_norms) {
      head_min = std::min(head_min, x);
      head_max = std::max(head_max, x);
      sum += x * x;
    }
    const double norm = std::sqrt(sum / static_cast<double>(head_norms.size()));
    tokens.add(norm);
    const auto value = static_cast<float>(norm);
    if (first.size() < kFirstTokens) first.push_back(value);
    const size_t page = static_cast<size_t>(position / kPageTokens);
    if (pages.size() <= page) pages.resize(page + 1, Page{value, 0, value, 0});
    Page& p = pages[page];
    p.min = std::min(p.min, value);
    p.max = std::max(p.max, value);
    p.sum += value;
    p.n++;
  }

  NormSummary summary(char tensor, int layer) const {
    NormSummary out;
    out.tensor = tensor;
    out.layer = layer;
    out.min = tokens.min();
    out.p1 = tokens.quantile(0.01);
    out.median = tokens.quantile(0.5);
    out.p99 = tokens.quantile(0.99);
    out.max = tokens.max();
    out.variation = tokens.variation();
    out.head_ratio = head_min > 0 ? head_max / head_min : 0;
    out.first = first;
    for (const Page& p : pages) out.pages.push_back({p.min, p.sum / static_cast<float>(p.n), p.max});
    return out;
  }
};

/// Sums of one KeyStage.
struct StageSums {
  double ratio = 0, bound = 0, uniform = 0, measured = 0, per_token = 0, energy = 0;
  int64_t groups = 0, tokens = 0;

  /// keys [group, n_kv_heads·head_dim] in the basis that is coded.
  void add(const RowMatrix& keys, bool scaled) {
    const Eigen::Index n = keys.rows();
    Eigen::VectorXd norms = keys.cast<double>().rowwise().norm();
    const double smallest = norms.minCoeff(), largest = norms.maxCoeff(), group_energy = norms.squaredNorm();
    if (group_energy <= 0) return;
    Eigen::VectorXd weight = Eigen::VectorXd::Ones(n);  // what a coded row is multiplied by when read
    if (scaled)
      for (Eigen::Index t = 0; t < n; t++) weight[t] = norms[t] > 0 ? norms[t] : 1;
    const Eigen::MatrixXd coded = weight.cwiseInverse().asDiagonal() * keys.cast<double>();
    const Eigen::RowVectorXd low = coded.colwise().minCoeff(),
                             step = (coded.colwise().maxCoeff() - low) / 3.0;
    double step2 = 0;
    Eigen::VectorXd error2 = Eigen::VectorXd::Zero(n);
    for (Eigen::Index c = 0; c < coded.cols(); c++) {
      step2 += step[c] * step[c] / 12;
      if (step[c] <= 0) continue;  // a constant channel is exact
      for (Eigen::Index t = 0; t < n; t++) {
        const double x = coded(t, c), code = std::floor((x - low[c]) / step[c] + 0.5);
        const double e = weight[t] * (step[c] * code + low[c] - x);
        error2[t] += e * e;
      }
    }
    groups++;
    tokens += n;
    ratio += scaled ? 1 : smallest > 0 ? largest / smallest : 0;
    if (!scaled) bound += static_cast<double>(n) * (largest - smallest) * (largest - smallest) / (12 * 9);
    uniform += step2 * weight.squaredNorm();
    measured += error2.sum();
    for (Eigen::Index t = 0; t < n; t++)
      if (norms[t] > 0) per_token += error2[t] / (norms[t] * norms[t]);
    energy += group_energy;
  }

  KeyStage stage(const std::string& transform, int layer, bool scaled) const {
    const double e = energy > 0 ? energy : 1;
    return {.transform = transform,
            .layer = layer,
            .scaled = scaled,
            .ratio = groups > 0 ? ratio / static_cast<double>(groups) : 0,
            .bound = bound / e,
            .uniform = uniform / e,
            .measured = measured / e,
            .per_token = tokens > 0 ? per_token / static_cast<double>(tokens) : 0};
  }
};

class NormObserver final : public Observer {
 public:
  NormObserver(const KvShape& shape, const std::vector<NamedTransforms>& transforms,
               const TokenNormOptions& options)
      : shape_(shape), transforms_(transforms), options_(options) {
    norms_.resize(static_cast<size_t>(shape.n_layers) * 3);
    stages_.resize(static_cast<size_t>(shape.n_layers) * transforms.size() * 2);
  }

  void on_layer(const LayerActivations& a) override {
    const float* tensors[] = {a.q, a.k, a.v};
    for (int i = 0; i < 3; i++) {
      const int heads = i == 0 ? shape_.n_heads : shape_.n_kv_heads;
      add_norms(tensors[i], heads, a, norms_[static_cast<size_t>(a.layer) * 3 + i]);
    }
    const int group = options_.group;
    for (int row = 0; row + group <= a.n_rows; row += group)
      if (a.positions[row] >= options_.skip_tokens) add_group(a, row);
  }

  TokenNormResult result(int64_t n_tokens) const {
    TokenNormResult out{.tokens = n_tokens, .options = options_, .norms = {}, .stages = {}};
    for (size_t i = 0; i < norms_.size(); i++)
      out.norms.push_back(norms_[i].summary(kTensors[i % 3], static_cast<int>(i / 3)));
    for (size_t i = 0; i < stages_.size(); i++)
      out.stages.push_back(stages_[i].stage(transforms_[i / 2 % transforms_.size()].name,
                                            static_cast<int>(i / 2 / transforms_.size()), i % 2 == 1));
    return out;
  }

 private:
  void add_norms(const float* x, int heads, const LayerActivations& a, NormStream& stream) const {
    const int d = shape_.head_dim;
    std::vector<double> norms(heads);
    for (int row = 0; row < a.n_rows; row++) {
      for (int h = 0; h < heads; h++) {
        const float* head = x + (static_cast<size_t>(row) * heads + h) * d;
        double sum = 0;
        for (int c = 0; c < d; c++) sum += static_cast<double>(head[c]) * head[c];
        norms[h] = std::sqrt(sum);
      }
      stream.add(norms, a.positions[row]);
    }
  }

  void add_group(const LayerActivations& a, int row) {
    const int d = shape_.head_dim, heads = shape_.n_kv_heads, width = heads * d;
    const Eigen::Map<const RowMatrix> keys(a.k + static_cast<size_t>(row) * width, options_.group, width);
    RowMatrix x(keys.rows(), width);
    for (size_t t = 0; t < transforms_.size(); t++) {
      x = keys;
      if (!transforms_[t].layers.empty()) {
        const Transform& transform = transforms_[t].layers.at(a.layer).k;
        for (int h = 0; h < heads && !transform.encode.empty(); h++) {
          const Eigen::Map<const RowMatrix> encode(transform.encode.data() + static_cast<size_t>(h) * d * d,
                                                   d, d);
          x.middleCols(h * d, d) = keys.middleCols(h * d, d) * encode;
        }
      }
      const size_t index = (static_cast<size_t>(a.layer) * transforms_.size() + t) * 2;
      stages_[index].add(x, false);
      stages_[index + 1].add(x, true);
    }
  }

  KvShape shape_;
  const std::vector<NamedTransforms>& transforms_;
  TokenNormOptions options_;
  std::vector<NormStream> norms_;  // [n_layers, 3]
  std::vector<StageSums> stages_;  // [n_layers, transforms, 2]
};

}  // namespace

TokenNormResult measure_token_norms(Model& model, const std::vector<int32_t>& tokens,
                                    const std::vector<NamedTransforms>& transforms,
                                    const TokenNormOptions& options) {
  if (options.group < 2 || options.group > 1024 || options.max_tokens < 0 || options.skip_tokens < 0 ||
      options.skip_tokens % options.group != 0)
    throw_error(ErrorCode::BadArgument,
                "token norms: groups of {} tokens behind {} of {}: supported are groups of 2 to 1024 and "
                "whole groups to skip",
                options.group, options.skip_tokens, options.max_tokens);
  std::span<const int32_t> text(tokens);
  if (options.max_tokens > 0)
    text = text.first(std::min(tokens.size(), static_cast<size_t>(options.max_tokens)));
  const auto n = static_cast<int64_t>(text.size());
  if (n < options.skip_tokens + options.group)
    throw_error(
        ErrorCode::BadArgument,
        "token norms: a group of {} tokens behind {} needs {}, the text has {}; give more text, or smaller "
        "groups (--group)",
        options.group, options.skip_tokens, options.skip_tokens + options.group, n);
  require_tokens(text, model.config(), "token norms");
  const int rows = std::min(options.chunk_tokens, model.max_rows());
  if (rows < options.group)
    throw_error(ErrorCode::BadArgument, "token norms: chunks of {} tokens do not hold a group of {}", rows,
                options.group);
  const int chunk = rows / options.group * options.group;
  NormObserver observer(model.config().kv_shape(), transforms, options);
  SequenceWalk walk(model, CacheSpec::parse("bf16"), nullptr, n, chunk);
  walk.restart(0);
  Progress progress("norms", n);
  for (int64_t begin = 0; begin < n; begin += chunk) {
    throw_if_interrupted();
    const auto piece = text.subspan(begin, std::min<int64_t>(chunk, n - begin));
    walk.advance(piece, {}, &observer);
    progress.advance(static_cast<int64_t>(piece.size()));
  }
  return observer.result(n);
}

}  // namespace kv2
