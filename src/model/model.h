// Model: weights on a backend and one forward for all of them. Keeps no state between forwards: that is the
// KvCache's.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "model/config.h"

namespace kv2 {

/// Flat rows of one forward: slices of sequences, one after the other.
struct Batch {
  std::vector<int32_t> tokens;      // [n_rows]
  std::vector<Slice> slices;        // cover all rows in order
  std::vector<int32_t> logit_rows;  // ascending rows whose logits are wanted
};

/// What one layer's attention consumed, for calibration and diagnosis. Host memory, valid during the call.
struct LayerActivations {
  int layer, n_rows;
  std::span<const int64_t> positions;  // [n_rows]
  const float* q;                      // [n_rows, n_heads, head_dim] after QK-norm and RoPE, un-rotated
  const float* k_before_rope;          // [n_rows, n_kv_heads, head_dim] after QK-norm
  const float* k;                      // [n_rows, n_kv_heads, head_dim] after RoPE, un-rotated
  const float* v;                      // [n_rows, n_kv_heads, head_dim] un-rotated
  const float* attention_out;          // [n_rows, n_heads, head_dim] un-rotated, before W_o
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_layer(const LayerActivations& a) = 0;
};

class Model {
 public:
  /// `path`: a .gguf file or a Hugging Face directory. Errors: Io, BadFile, Unsupported; each names the key
  /// or tensor (layer, expected and found shape) and what is supported. max_rows: the most rows of one
  /// forward; scratch is allocated for that once.
  static std::unique_ptr<Model> load(const std::string& path, Backend& backend, int max_rows);
  ~Model();

  const ModelConfig& config() const;
  const TensorFile& file() const;
  /// "<architecture>-<32 hex>": weights, architecture and RoPE pairing. Computed on first use.
  const std::string& fingerprint() const;
  Backend& backend() const;
  int max_rows() const;
  /// W_o of a layer as the file has it, decoded: out [hidden, n_heads·head_dim], host memory.
  void read_output_projection(int layer, float* out) const;
  /// V's way back out of its stored basis becomes a part of W_o, an op less in every layer: for caches of
  /// these transforms, [n_layers], alone from now on, and without observers. Empty, or without such a basis:
  /// W_o as the file has it, for every cache. Where the backend rounds weights, W_o is rounded in the other
  /// basis. Errors: Unsupported where weights stay in the file's codes, and nothing has changed; after any
  /// other no cache is served until a later call succeeds.
  void absorb_values(std::span<const LayerTransforms> transforms);
  bool has_absorbed_values() const;
  /// Throws Mismatch where W_o has absorbed another basis than the one in which this cache stores V. forward
  /// asks this, too.
  void require_values_of(const KvCache& cache) const;
  size_t weight_bytes() const;   // on the device
  size_t scratch_bytes() const;  // of forwards of max_rows rows

  /// One step. Pages must be reserved. logits: [batch.logit_rows.size(), vocab], host memory.
  /// observer may be nullptr.
  void forward(const Batch& batch, KvCache& cache, std::span<float> logits, Observer* observer);
  /// The same step for greedy text: of each wanted row the token with the largest logit (ops/arg_max.h), best
  /// [batch.logit_rows.size()]. Logits stay on the device where the backend can look there.
  void forward_best(const Batch& batch, KvCache& cache, std::span<int32_t> best);

  struct Impl;  // model_impl.h, of this folder alone

 private:
  Model();
  std::unique_ptr<Impl> impl_;
};

/// Device bytes of weights and scratch without loading anything: for `kv2 plan`. Errors: those of the file's
/// tensors.
struct ModelPlan {
  size_t weight_bytes = 0, scratch_bytes = 0;
};
ModelPlan plan_model(const TensorFile& file, const Backend& backend, int max_rows);

/// Whether absorb_values would be refused, before anything is loaded. Errors: Unsupported, with the first
/// tensor that stays in the file's codes; those of the file's tensors.
void require_absorbing(const TensorFile& file, const Backend& backend);

/// Opens either format. GGUF when the path is a file, else a Hugging Face directory.
std::unique_ptr<TensorFile> open_model_file(const std::string& path);
ModelConfig read_config(const TensorFile& file);

}  // namespace kv2
