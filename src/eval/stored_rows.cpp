// SPDX-License-Identifier: Apache-2.0
#include "eval/stored_rows.h"

#include "base/check.h"
#include "base/float16.h"
#include "engine/transforms.h"
#include "quant/int2/int2.h"
#include "quant/page_codec.h"

namespace kv2 {
namespace {

float* at_page(std::vector<float>& rows, int64_t page, int head_dim) {
  const size_t n = static_cast<size_t>(kPageTokens) * head_dim, first = static_cast<size_t>(page) * n;
  KV2_CHECK(first + n <= rows.size(), "page {} of {} values", page, rows.size());
  return rows.data() + first;
}

}  // namespace

bool read_full(const KvCache& cache, SequenceId sequence, int64_t page, int layer, int kv_head,
               HeadRows& out) {
  const std::vector<std::byte> bytes = cache.full_bytes(sequence, page, layer, kv_head);
  if (bytes.empty()) return false;
  const int d = cache.shape().head_dim;
  const size_t n = static_cast<size_t>(kPageTokens) * d;
  const bf16* rows = reinterpret_cast<const bf16*>(bytes.data());
  float *k = at_page(out.k, page, d), *v = at_page(out.v, page, d);
  for (size_t i = 0; i < n; i++) {
    k[i] = to_float(rows[i]);
    v[i] = to_float(rows[n + i]);
  }
  return true;
}

bool read_packed(const KvCache& cache, SequenceId sequence, int64_t page, int layer, int kv_head,
                 HeadRows& out) {
  const std::vector<std::byte> bytes = cache.packed_bytes(sequence, page, layer, kv_head);
  if (bytes.empty()) return false;
  const PageLayout& layout = cache.plan().layout;
  const LayerLayout& part = layout.layer(layer);
  const int d = cache.shape().head_dim;
  float *k = at_page(out.k, page, d), *v = at_page(out.v, page, d);
  if (!part.int2_heads()) {  // of all KV heads, K's side and then V's
    page_codec(part.k.codec).decode(layout.k_side(layer, page), bytes.data(), kv_head, k);
    page_codec(part.v.codec).decode(layout.v_side(layer, page), bytes.data() + part.k_bytes, kv_head, v);
    return true;
  }
  const Int2Layout int2 = layout.int2(layer);
  const auto decode = [&](size_t codes, size_t params, float* rows) {
    int2::decode_rows(reinterpret_cast<const uint8_t*>(bytes.data() + codes),
                      reinterpret_cast<const fp16*>(bytes.data() + params), d, int2.group, rows);
  };
  decode(int2.k_codes(), int2.k_params(), k);
  decode(int2.v_codes(), int2.v_params(), v);
  return true;
}

StoredRows::StoredRows(Model& model, const CacheSpec& spec, const Calibration* calibration, int64_t context,
                       int chunk_tokens)
    : backend_(model.backend()) {
  const KvShape shape = model.config().kv_shape();
  spec.validate(shape.head_dim);
  if (calibration && spec.method.needs_calibration()) calibration->require_model(model.fingerprint());
  FittedMethod fitted = fit_method(spec, shape, calibration);
  transforms_ = fitted.transforms;
  none_.k = none_.v = identity_transform(shape.n_kv_heads, shape.head_dim);
  const CacheCapacity capacity{.context_tokens = context, .n_sequences = 1, .chunk_tokens = chunk_tokens};
  cache_ = std::make_unique<KvCache>(backend_, spec, shape, capacity, std::move(fitted));
  const std::optional<SequenceId> sequence = cache_->open();
  KV2_CHECK(sequence && cache_->reserve(*sequence, context), "a cache for one sequence has no room for it");
  sequence_ = *sequence;
  const size_t values = static_cast<size_t>(chunk_tokens) * shape.n_kv_heads * shape.head_dim;
  rows_ = std::make_unique<DeviceSlab>(backend_, 2 * values * sizeof(float));
  k_ = reinterpret_cast<float*>(rows_->data());
  v_ = k_ + values;
}

const LayerTransforms& StoredRows::transforms(int layer) const {
  return transforms_.empty() ? none_ : transforms_.at(layer);
}

void StoredRows::begin(int n_rows) {
  slices_ = {Slice{.sequence = sequence_, .first_row = 0, .n_rows = n_rows}};
  step_ = cache_->begin(slices_);
}

void StoredRows::into_basis(const float* host, float* device, const float* encode, const float* mean,
                            int n_rows) {
  const KvShape& shape = cache_->shape();
  backend_.upload(device, host,
                  static_cast<size_t>(n_rows) * shape.n_kv_heads * shape.head_dim * sizeof(float));
  if (encode == nullptr) return;
  backend_.transform({.in = device,
                      .out = device,
                      .matrix = encode,
                      .mean = mean,
                      .add = nullptr,
                      .n_rows = n_rows,
                      .n_heads = shape.n_kv_heads,
                      .n_kv_heads = shape.n_kv_heads,
                      .head_dim = shape.head_dim,
                      .transpose = false});
}

void StoredRows::store(const LayerActivations& a) {
  KV2_CHECK(slices_.size() == 1 && a.n_rows == slices_[0].n_rows, "{} rows of another forward", a.n_rows);
  const KvCache::DeviceTransform t = cache_->transforms(a.layer);
  into_basis(a.k, k_, t.k_encode, t.k_mean, a.n_rows);
  into_basis(a.v, v_, t.v_encode, t.v_mean, a.n_rows);
  backend_.append({.layer = a.layer, .k = k_, .v = v_, .kv = step_.kv, .sequences = step_.sequences});
  if (!step_.demotions.empty())
    backend_.demote({.layer = a.layer,
                     .k = cache_->coder_k(a.layer),
                     .v = cache_->coder_v(a.layer),
                     .kv = step_.kv,
                     .pages = step_.demotions});
  backend_.sync();
}

void StoredRows::commit() {
  cache_->commit(slices_);
  slices_.clear();
}

}  // namespace kv2
