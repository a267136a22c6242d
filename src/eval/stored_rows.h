// SPDX-License-Identifier: Apache-2.0
// StoredRows: a method's cache that is fed the K and V of somebody else's walk, layer by layer, and read back
// row by row: what the method would store had the model come that far in bf16. The bytes come from the same
// operations of the backend that a forward of the method uses (transform, append, demote).
#pragma once

#include <memory>
#include <vector>

#include "cache/device_slab.h"
#include "cache/kv_cache.h"
#include "kv2/cache.h"
#include "kv2/calibrate.h"
#include "model/model.h"

namespace kv2 {

/// K and V of one KV head, every position before an end, in the basis of one cache.
struct HeadRows {
  std::vector<float> k, v;  // [n_positions, head_dim]

  void resize(size_t n_positions, int head_dim) {
    k.resize(n_positions * head_dim);
    v.resize(n_positions * head_dim);
  }
};

/// Rows of a page as attention reads them in that form, in the cache's basis, to their place in `out`. False,
/// and `out` is not touched, when the page is not held in that form.
[[nodiscard]] bool read_full(const KvCache& cache, SequenceId sequence, int64_t page, int layer, int kv_head,
                             HeadRows& out);
[[nodiscard]] bool read_packed(const KvCache& cache, SequenceId sequence, int64_t page, int layer,
                               int kv_head, HeadRows& out);

class StoredRows {
 public:
  /// Room for one sequence of `context` tokens in forwards of at most chunk_tokens. Errors: as make_cache.
  StoredRows(Model& model, const CacheSpec& spec, const Calibration* calibration, int64_t context,
             int chunk_tokens);

  // One forward: begin, store of every layer once, commit. Between store and commit all rows that the
  // forward's queries read can be read.
  void begin(int n_rows);
  void store(const LayerActivations& a);
  void commit();

  bool read_full(int64_t page, int layer, int kv_head, HeadRows& out) const {
    return kv2::read_full(*cache_, sequence_, page, layer, kv_head, out);
  }
  bool read_packed(int64_t page, int layer, int kv_head, HeadRows& out) const {
    return kv2::read_packed(*cache_, sequence_, page, layer, kv_head, out);
  }
  const KvCache& cache() const { return *cache_; }
  /// Of this layer, on the host; empty matrices where the cache's basis is the model's own.
  const LayerTransforms& transforms(int layer) const;

 private:
  void into_basis(const float* host, float* device, const float* encode, const float* mean, int n_rows);

  Backend& backend_;
  std::unique_ptr<KvCache> cache_;
  std::vector<LayerTransforms> transforms_;  // [n_layers] or empty
  LayerTransforms none_;
  SequenceId sequence_{};
  std::unique_ptr<DeviceSlab> rows_;  // K and V of a forward
  float *k_ = nullptr, *v_ = nullptr;
  CacheStep step_;
  std::vector<Slice> slices_;
};

}  // namespace kv2
