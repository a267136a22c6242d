// SPDX-License-Identifier: Apache-2.0
// Loading, planning and the small questions of Model; forward is in decoder.cpp.
#include "model/model.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/memory.h"
#include "model/model_impl.h"
#include "model/random_file.h"
#include "ops/device_extras.h"

namespace kv2 {
namespace {

constexpr size_t kLogitTileBytes = size_t{16} << 20;
// Rows that the MLP takes at once in host memory: its buffers are the widest of all, and the linears' tasks
// are 128 or 256 rows high, so that more rows at once save no byte of weights. A GPU takes all.
constexpr int kMlpRows = 256;

/// Hands out 64-byte aligned runs of floats.
struct Cursor {
  size_t at = 0;
  size_t take(size_t n_floats) {
    const size_t begin = at;
    at += (n_floats + 15) / 16 * 16;
    return begin;
  }
};

/// Before anything is allocated: a clear line instead of a killed process.
void check_memory(const TensorFile& file, const Backend& backend, int max_rows) {
  const ModelPlan plan = plan_model(file, backend, max_rows);
  const size_t room = free_memory(backend);
  if (plan.weight_bytes + plan.scratch_bytes > room)
    throw_error(ErrorCode::OutOfMemory,
                "weights need {} ({}) and scratch {}, but {} of memory are free; a smaller model would fit",
                format_bytes(plan.weight_bytes), backend.linear_precision(), format_bytes(plan.scratch_bytes),
                format_bytes(room));
}

/// The weights, once the tensors are known to be sound and memory holds them.
ModelWeights load_checked(const TensorFile& file, const ModelConfig& config, Backend& backend, int max_rows) {
  check_tensors(file, config);
  check_memory(file, backend, max_rows);
  return load_weights(file, config, backend);
}

}  // namespace

ScratchPlan::ScratchPlan(const ModelConfig& c, const Backend& backend, int rows) {
  const size_t n = rows, q_width = static_cast<size_t>(c.n_heads) * c.head_dim,
               kv_width = static_cast<size_t>(c.n_kv_heads) * c.head_dim;
  Cursor shared;
  x = shared.take(n * c.hidden);
  normed = shared.take(n * c.hidden);

  Cursor part = shared;
  qkv = part.take(n * c.qkv_width());
  q = part.take(n * q_width);
  k = part.take(n * kv_width);
  v = part.take(n * kv_width);
  attention = part.take(n * q_width);
  n_floats = part.at;

  part = shared;
  mlp_rows = has_own_memory(backend) ? rows : std::min(rows, kMlpRows);
  gate_up = part.take(static_cast<size_t>(mlp_rows) * 2 * c.intermediate);
  activation = part.take(static_cast<size_t>(mlp_rows) * c.intermediate);
  n_floats = std::max(n_floats, part.at);

  part = shared;
  logit_tile = static_cast<int>(
      std::clamp<size_t>(kLogitTileBytes / (sizeof(float) * c.vocab), 1, std::min<size_t>(n, 64)));
  last = part.take(static_cast<size_t>(logit_tile) * c.hidden);
  logits = part.take(static_cast<size_t>(logit_tile) * c.vocab);
  n_floats = std::max(n_floats, part.at);
  max_width = std::max({c.hidden, c.n_heads * c.head_dim, c.intermediate});
}

Model::Impl::Impl(Backend& b, std::unique_ptr<TensorFile> f, int rows)
    : backend(b),
      file(std::move(f)),
      config(read_config(*file)),
      max_rows(rows),
      plan(config, b, rows),
      weights(load_checked(*file, config, backend, rows)),
      scratch(backend, plan.bytes()),
      inv_frequency(config.rope.inv_frequency(config.head_dim)) {
  file->forget();  // what the last layer and check_tensors have left
}

Model::Model() = default;
Model::~Model() = default;

std::unique_ptr<Model> Model::load(const std::string& path, Backend& backend, int max_rows) {
  if (max_rows < 1)
    throw_error(ErrorCode::BadArgument, "a model needs room for at least one row per step, not {}", max_rows);
  std::unique_ptr<TensorFile> file = open_model_file(path);
  std::unique_ptr<Model> model(new Model());
  try {
    model->impl_ = std::make_unique<Impl>(backend, std::move(file), max_rows);
  } catch (const Error& e) {
    throw e.in(path);
  }
  return model;
}

const ModelConfig& Model::config() const {
  return impl_->config;
}
const TensorFile& Model::file() const {
  return *impl_->file;
}
Backend& Model::backend() const {
  return impl_->backend;
}
int Model::max_rows() const {
  return impl_->max_rows;
}
void Model::read_output_projection(int layer, float* out) const {
  kv2::read_output_projection(*impl_->file, impl_->config, layer, out);
}
void Model::absorb_values(std::span<const LayerTransforms> transforms) {
  Impl& m = *impl_;
  std::string bases = value_bases_of(transforms);  // reads all matrices
  if (m.value_bases == bases) return;
  const std::string before = std::exchange(m.value_bases, "neither");
  try {
    load_output_projections(*m.file, m.config, m.backend, transforms, m.weights);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::Unsupported) m.value_bases = before;
    throw;
  }
  m.value_bases = std::move(bases);
}
bool Model::has_absorbed_values() const {
  return !impl_->value_bases.empty();
}
void Model::require_values_of(const KvCache& cache) const {
  impl_->require_values_of(cache);
}
void Model::Impl::require_values_of(const KvCache& cache) const {
  if (!value_bases.empty() && value_bases != cache.value_bases())
    throw_error(ErrorCode::Mismatch,
                "W_o of this model has absorbed V's basis of another method than {}; run with caches of one "
                "method, or without absorbing",
                cache.spec().method_text());
}
size_t Model::weight_bytes() const {
  return impl_->weights.bytes();
}

size_t Model::scratch_bytes() const {
  const Impl& m = *impl_;
  return m.plan.bytes() + m.backend.scratch_bytes(m.max_rows, m.plan.max_width, m.config.kv_shape());
}

const std::string& Model::fingerprint() const {
  if (impl_->fingerprint.empty()) impl_->fingerprint = compute_fingerprint(*impl_->file, impl_->config);
  return impl_->fingerprint;
}

void require_absorbing(const TensorFile& file, const Backend& backend) {
  const ModelConfig config = read_config(file);
  check_tensors(file, config);
  require_float_outputs(file, config, backend);
}

ModelPlan plan_model(const TensorFile& file, const Backend& backend, int max_rows) {
  const ModelConfig config = read_config(file);
  check_tensors(file, config);
  const ScratchPlan scratch(config, backend, max_rows);
  return {plan_weight_bytes(file, config, backend),
          scratch.bytes() + backend.scratch_bytes(max_rows, scratch.max_width, config.kv_shape())};
}

std::unique_ptr<TensorFile> open_model_file(const std::string& path) {
  if (auto random = RandomFile::open(path)) return random;
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec)) return HfDirectory::open(path);
  return GgufFile::open(path);
}

ModelConfig read_config(const TensorFile& file) {
  if (const auto* gguf = dynamic_cast<const GgufFile*>(&file)) return ModelConfig::from_gguf(*gguf);
  if (const auto* hf = dynamic_cast<const HfDirectory*>(&file)) return ModelConfig::from_hf(*hf);
  if (const auto* random = dynamic_cast<const RandomFile*>(&file)) return random->config();
  throw_error(ErrorCode::Unsupported,
              "a {} alone is no model; supported are GGUF files and Hugging Face directories", file.kind());
}

}  // namespace kv2
