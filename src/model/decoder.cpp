// SPDX-License-Identifier: Apache-2.0
// Model::forward: the decoder of Llama, Qwen 2 and Qwen 3 in one piece, for every backend. It reads as the
// diagram. K and V enter the cache after RoPE and after the transform; q meets them there, and the attention
// output comes back.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "model/model_impl.h"
#include "ops/device_extras.h"

namespace kv2 {
namespace {

/// One forward: the buffers, the step and the ops of a layer.
class Forward {
 public:
  Forward(Model::Impl& model, const Batch& batch, KvCache& cache, const CacheStep& step, Observer* observer)
      : m_(model),
        c_(model.config),
        b_(model.backend),
        batch_(batch),
        cache_(cache),
        step_(step),
        observer_(observer),
        n_rows_(static_cast<int>(batch.tokens.size())) {
    for (const SequenceView& s : step.sequences)
      for (int i = 0; i < s.n_rows; i++) positions_.push_back(s.first_pos + i);
    KV2_CHECK(static_cast<int>(positions_.size()) == n_rows_, "slices cover {} of {} rows", positions_.size(),
              n_rows_);
  }

  /// Where results go: whole rows of logits, or the best token of each.
  struct Results {
    float* logits = nullptr;
    int32_t* best = nullptr;
  };

  void run(const Results& results) {
    // Steps of single rows come again and again; prompts do not, and an observer looks at results.
    if (observer_ == nullptr && n_rows_ == static_cast<int>(step_.sequences.size())) {
      // A device is busy with the first layer while the ops of all others are gone through here.
      run_step(b_, [this] { layers(0, 1); });
      if (c_.n_layers > 1) run_step(b_, [this] { layers(1, c_.n_layers); });
    } else {
      layers(0, c_.n_layers);
    }
    head(results);
  }

 private:
  void layers(int first, int end) {
    if (first == 0)
      b_.embed(*m_.weights.embedding,
               {.tokens = batch_.tokens.data(), .out = at(m_.plan.x), .n_rows = n_rows_});
    for (int layer = first; layer < end; layer++) {
      attention(layer, m_.weights.layers[layer]);
      mlp(m_.weights.layers[layer]);
    }
  }

  void attention(int layer, const LayerWeights& w) {
    const auto transforms = cache_.transforms(layer);
    norm(at(m_.plan.x), w.attention_norm, at(m_.plan.normed), n_rows_, c_.hidden);
    b_.linear(*w.qkv, {.in = at(m_.plan.normed), .out = at(m_.plan.qkv), .n_rows = n_rows_});
    if (observer_ || !heads_at_once(layer, w, transforms)) heads(layer, w, transforms);
    if (!step_.demotions.empty())
      b_.demote({.layer = layer,
                 .k = cache_.coder_k(layer),
                 .v = cache_.coder_v(layer),
                 .kv = step_.kv,
                 .pages = step_.demotions});
    float* out = at(m_.plan.attention);  // in the stored basis
    const bool comes_back = transforms.v_decode && !w.o_has_basis;
    b_.attend({.layer = layer,
               .q = q_,
               .out = out,
               .kv = step_.kv,
               .sequences = step_.sequences,
               .softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c_.head_dim))),
               .soft_cap = 0,
               .feeds_linear = !comes_back});
    if (comes_back) {
      float* back = at(m_.plan.q);  // queries have been read
      transform(out, back, c_.n_heads, transforms.v_decode, {.add = transforms.v_mean}, Basis::Rows);
      out = back;
    }

    if (observer_) {
      observe(out, c_.n_heads, &seen_.attention_out);
      report(layer);
    }
    b_.linear(*w.o, {.in = out, .out = at(m_.plan.x), .n_rows = n_rows_, .accumulate = Accumulate::Yes});
  }

  /// From q, k and v as they come to queries in the stored basis and rows in pages.
  void heads(int layer, const LayerWeights& w, const KvCache::DeviceTransform& transforms) {
    split_qkv();
    if (c_.qk_norm) {
      norm(q_, w.q_norm, q_, n_rows_ * c_.n_heads, c_.head_dim);
      norm(k_, w.k_norm, k_, n_rows_ * c_.n_kv_heads, c_.head_dim);
    }
    if (observer_) observe(k_, c_.n_kv_heads, &seen_.k_before_rope);
    rope(q_, c_.n_heads);
    rope(k_, c_.n_kv_heads);
    if (observer_) {
      observe(q_, c_.n_heads, &seen_.q);
      observe(k_, c_.n_kv_heads, &seen_.k);
      observe(v_, c_.n_kv_heads, &seen_.v);
    }
    into_basis(transforms);
    b_.append({.layer = layer, .k = k_, .v = v_, .kv = step_.kv, .sequences = step_.sequences});
  }
  /// The same in one op, where the backend has it.
  bool heads_at_once(int layer, const LayerWeights& w, const KvCache::DeviceTransform& t) {
    q_ = at(m_.plan.q);
    return fused_heads(b_, {.layer = layer,
                            .qkv = at(m_.plan.qkv),
                            .q_out = q_,
                            .q = {.norm = c_.qk_norm ? w.q_norm.floats() : nullptr, .matrix = t.k_decode},
                            .k = {c_.qk_norm ? w.k_norm.floats() : nullptr, t.k_encode, t.k_mean},
                            .v = {.matrix = t.v_encode, .mean = t.v_mean},
                            .epsilon = c_.rms_epsilon,
                            .inv_frequency = m_.inv_frequency.data(),
                            .pairing = c_.rope.pairing,
                            .kv = step_.kv,
                            .sequences = step_.sequences,
                            .n_rows = n_rows_});
  }

  void mlp(const LayerWeights& w) {
    norm(at(m_.plan.x), w.mlp_norm, at(m_.plan.normed), n_rows_, c_.hidden);
    float* gate_up = at(m_.plan.gate_up);
    for (int first = 0; first < n_rows_; first += m_.plan.mlp_rows) {
      const int n = std::min(m_.plan.mlp_rows, n_rows_ - first);
      const size_t row = static_cast<size_t>(first) * c_.hidden;
      b_.linear(*w.gate_up, {.in = at(m_.plan.normed) + row, .out = gate_up, .n_rows = n});
      b_.swiglu({.gate = gate_up,
                 .up = gate_up + c_.intermediate,
                 .out = at(m_.plan.activation),
                 .n_rows = n,
                 .width = c_.intermediate,
                 .stride = 2 * static_cast<size_t>(c_.intermediate)});
      b_.linear(*w.down, {.in = at(m_.plan.activation),
                          .out = at(m_.plan.x) + row,
                          .n_rows = n,
                          .accumulate = Accumulate::Yes});
    }
  }

  /// Final norm and output weights of the wanted rows alone, tile by tile: the device never holds all logits.
  void head(const Results& results) {
    const auto& rows = batch_.logit_rows;
    const size_t row_bytes = c_.hidden * sizeof(float), vocab = c_.vocab;
    for (size_t first = 0; first < rows.size(); first += m_.plan.logit_tile) {
      const int n = static_cast<int>(std::min<size_t>(m_.plan.logit_tile, rows.size() - first));
      float* last = at(m_.plan.last);
      const float* wanted = at(m_.plan.x) + size_t(rows[first]) * c_.hidden;
      if (rows[first + n - 1] - rows[first] != n - 1) {  // not side by side
        for (int i = 0; i < n; i++)
          b_.copy(last + size_t(i) * c_.hidden, at(m_.plan.x) + size_t(rows[first + i]) * c_.hidden,
                  row_bytes);
        wanted = last;
      }
      norm(wanted, m_.weights.final_norm, last, n, c_.hidden);
      b_.linear(*m_.weights.lm_head, {.in = last, .out = at(m_.plan.logits), .n_rows = n});
      if (results.best)
        arg_max(b_, at(m_.plan.logits), n, c_.vocab, results.best + first);
      else
        b_.download(results.logits + first * vocab, at(m_.plan.logits), n * vocab * sizeof(float));
    }
  }

  /// [n_rows, q | k | v] -> three contiguous matrices. One row needs no copy.
  void split_qkv() {
    const size_t q_width = size_t(c_.n_heads) * c_.head_dim, kv_width = size_t(c_.n_kv_heads) * c_.head_dim;
    float* qkv = at(m_.plan.qkv);
    q_ = qkv, k_ = qkv + q_width, v_ = k_ + kv_width;
    if (n_rows_ == 1) return;
    q_ = at(m_.plan.q), k_ = at(m_.plan.k), v_ = at(m_.plan.v);
    const auto take = [&](float* to, size_t first, size_t width) {
      b_.copy_rows(to, width * sizeof(float), qkv + first, size_t(c_.qkv_width()) * sizeof(float),
                   width * sizeof(float), n_rows_);
    };
    take(q_, 0, q_width);
    take(k_, q_width, kv_width);
    take(v_, q_width + kv_width, kv_width);
  }

  /// q' = q·decode_Kᵀ, k' = (k − mean)·encode, v' = (v − mean)·encode.
  void into_basis(const KvCache::DeviceTransform& t) {
    if (t.k_encode) {
      t.k_rotates ? transform(q_, q_, c_.n_heads, t.k_encode, {}, Basis::Rows)
                  : transform(q_, q_, c_.n_heads, t.k_decode, {}, Basis::Columns);
      transform(k_, k_, c_.n_kv_heads, t.k_encode, {.subtract = t.k_mean}, Basis::Rows);
    }
    if (t.v_encode) transform(v_, v_, c_.n_kv_heads, t.v_encode, {.subtract = t.v_mean}, Basis::Rows);
  }

  enum class Basis { Rows, Columns };  // x·M or x·Mᵀ
  struct Means {
    const float *subtract = nullptr, *add = nullptr;
  };
  void transform(const float* in, float* out, int n_heads, const float* matrix, Means means, Basis basis) {
    b_.transform({.in = in,
                  .out = out,
                  .matrix = matrix,
                  .mean = means.subtract,
                  .add = means.add,
                  .n_rows = n_rows_,
                  .n_heads = n_heads,
                  .n_kv_heads = c_.n_kv_heads,
                  .head_dim = c_.head_dim,
                  .transpose = basis == Basis::Columns});
  }
  void norm(const float* in, const DeviceBuffer& weight, float* out, int n_rows, int width) {
    b_.rms_norm({.in = in,
                 .weight = weight.floats(),
                 .out = out,
                 .n_rows = n_rows,
                 .width = width,
                 .epsilon = c_.rms_epsilon});
  }
  void rope(float* x, int n_heads) {
    b_.rope({.x = x,
             .positions = positions_.data(),
             .inv_frequency = m_.inv_frequency.data(),
             .n_rows = n_rows_,
             .n_heads = n_heads,
             .head_dim = c_.head_dim,
             .pairing = c_.rope.pairing});
  }

  struct Seen {
    std::vector<float> q, k_before_rope, k, v, attention_out;
  };
  void observe(const float* x, int n_heads, std::vector<float>* out) {
    out->resize(size_t(n_rows_) * n_heads * c_.head_dim);
    b_.download(out->data(), x, out->size() * sizeof(float));
  }
  void report(int layer) {
    b_.sync();
    observer_->on_layer({.layer = layer,
                         .n_rows = n_rows_,
                         .positions = positions_,
                         .q = seen_.q.data(),
                         .k_before_rope = seen_.k_before_rope.data(),
                         .k = seen_.k.data(),
                         .v = seen_.v.data(),
                         .attention_out = seen_.attention_out.data()});
  }

  float* at(size_t offset) const { return m_.scratch.floats() + offset; }

  Model::Impl& m_;
  const ModelConfig& c_;
  Backend& b_;
  const Batch& batch_;
  KvCache& cache_;
  const CacheStep& step_;
  Observer* observer_;
  const int n_rows_;
  std::vector<int64_t> positions_;
  float *q_ = nullptr, *k_ = nullptr, *v_ = nullptr;
  Seen seen_;
};

void check_batch(const Batch& batch, const ModelConfig& config, int max_rows) {
  const int64_t n = static_cast<int64_t>(batch.tokens.size());
  KV2_CHECK(n >= 1 && n <= max_rows, "{} rows, scratch is for {}", n, max_rows);
  for (int32_t token : batch.tokens)
    if (token < 0 || token >= config.vocab)
      throw_error(ErrorCode::BadArgument, "token {} is outside the vocabulary of {} tokens", token,
                  config.vocab);
  int64_t row = 0;
  for (const Slice& s : batch.slices) {
    KV2_CHECK(s.first_row == row && s.n_rows >= 1, "slice at row {} instead of {}", s.first_row, row);
    row += s.n_rows;
  }
  KV2_CHECK(row == n, "slices cover {} of {} rows", row, n);
  int64_t last = -1;
  for (int32_t r : batch.logit_rows) {
    KV2_CHECK(r > last && r < n, "logit row {} after {} of {}", r, last, n);
    last = r;
  }
}

void step(Model::Impl& m, const Batch& batch, KvCache& cache, const Forward::Results& results,
          Observer* observer) {
  check_batch(batch, m.config, m.max_rows);
  m.require_values_of(cache);
  if (observer && !m.value_bases.empty())
    throw_error(ErrorCode::Unsupported,
                "W_o of this model has absorbed V's basis: attention's output cannot be observed in the "
                "model's own; load it without absorbing");
  const CacheStep step = cache.begin(batch.slices);
  Forward(m, batch, cache, step, observer).run(results);
  m.backend.sync();
  cache.commit(batch.slices);
}

}  // namespace

void Model::forward(const Batch& batch, KvCache& cache, std::span<float> logits, Observer* observer) {
  KV2_CHECK(logits.size() == batch.logit_rows.size() * static_cast<size_t>(impl_->config.vocab),
            "room for {} logits", logits.size());
  step(*impl_, batch, cache, {.logits = logits.data()}, observer);
}

void Model::forward_best(const Batch& batch, KvCache& cache, std::span<int32_t> best) {
  KV2_CHECK(best.size() == batch.logit_rows.size(), "room for {} tokens of {}", best.size(),
            batch.logit_rows.size());
  step(*impl_, batch, cache, {.best = best.data()}, nullptr);
}

}  // namespace kv2
