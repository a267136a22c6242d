// SPDX-License-Identifier: Apache-2.0
#include "model/random_file.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/check.h"
#include "model/arch.h"

namespace kv2 {
namespace {

constexpr const char* kPrefix = "random:";
constexpr size_t kNormals = size_t{1} << 20;

ModelConfig qwen3(const char* name, int layers, int hidden, int heads, int kv_heads, int intermediate,
                  bool tied) {
  ModelConfig c;
  c.architecture = Architecture::Qwen3;
  c.name = name;
  c.n_layers = layers;
  c.hidden = hidden;
  c.n_heads = heads;
  c.n_kv_heads = kv_heads;
  c.head_dim = 128;
  c.intermediate = intermediate;
  c.vocab = 151936;
  c.context = 131072;
  c.rms_epsilon = 1e-6f;
  c.rope.theta = 1e6;
  c.qk_norm = true;
  c.tied_embeddings = tied;
  return c;
}

/// Shapes as their configuration files give them; contexts as far as kv2 is asked to go.
std::vector<ModelConfig> known_shapes() {
  return {qwen3("qwen3-0.6b", 28, 1024, 16, 8, 3072, true), qwen3("qwen3-4b", 36, 2560, 32, 8, 9728, true),
          qwen3("qwen3-8b", 36, 4096, 32, 8, 12288, false),
          qwen3("qwen3-14b", 40, 5120, 40, 8, 17408, false)};
}

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

std::unique_ptr<RandomFile> RandomFile::open(const std::string& path) {
  if (!path.starts_with(kPrefix)) return nullptr;
  const std::string name = path.substr(std::string_view(kPrefix).size());
  std::vector<std::string> names;
  for (const ModelConfig& c : known_shapes()) {
    if (c.name == name) return std::unique_ptr<RandomFile>(new RandomFile(c));
    names.push_back(c.name);
  }
  throw_error(ErrorCode::BadArgument, "no shape '{}' for random weights; there are {}", name,
              fmt::join(names, ", "));
}

RandomFile::RandomFile(const ModelConfig& c) : config_(c), normals_(kNormals) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& x : normals_) x = normal(random);
  const TensorNames& n = hf_names();
  const int64_t q = int64_t{c.n_heads} * c.head_dim, kv = int64_t{c.n_kv_heads} * c.head_dim;
  const auto weight = [&](const std::string& prefix, const char* name, std::vector<int64_t> shape) {
    add(prefix + name + ".weight", std::move(shape));
  };
  weight("", n.embedding, {c.vocab, c.hidden});
  weight("", n.final_norm, {c.hidden});
  if (!c.tied_embeddings) weight("", n.lm_head, {c.vocab, c.hidden});
  for (int i = 0; i < c.n_layers; i++) {
    const std::string p = fmt::format(fmt::runtime(n.layer_prefix), i);
    weight(p, n.attention_norm, {c.hidden});
    weight(p, n.q, {q, c.hidden});
    weight(p, n.k, {kv, c.hidden});
    weight(p, n.v, {kv, c.hidden});
    weight(p, n.o, {c.hidden, q});
    weight(p, n.q_norm, {c.head_dim});
    weight(p, n.k_norm, {c.head_dim});
    weight(p, n.mlp_norm, {c.hidden});
    weight(p, n.gate, {c.intermediate, c.hidden});
    weight(p, n.up, {c.intermediate, c.hidden});
    weight(p, n.down, {c.hidden, c.intermediate});
  }
}

void RandomFile::add(std::string name, std::vector<int64_t> shape) {
  TensorInfo t{.name = std::move(name), .type = "BF16", .shape = std::move(shape)};
  t.bytes = static_cast<size_t>(t.n_elements()) * 2;
  tensors_.push_back(std::move(t));
}

const TensorInfo* RandomFile::find(std::string_view name) const {
  const auto at =
      std::find_if(tensors_.begin(), tensors_.end(), [&](const TensorInfo& t) { return t.name == name; });
  return at == tensors_.end() ? nullptr : &*at;
}

void RandomFile::read_rows(const TensorInfo& t, int64_t row0, int64_t n, float* out) const {
  if (t.shape.size() < 2) return std::fill(out, out + n, 1.0f);
  const auto width = static_cast<size_t>(t.shape[1]);
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  const uint64_t seed = std::hash<std::string>{}(t.name);
  for (int64_t row = row0; row < row0 + n; row++, out += width) {
    const size_t first = mix(seed + static_cast<uint64_t>(row)) % (kNormals - width);
    for (size_t i = 0; i < width; i++) out[i] = normals_[first + i] * scale;
  }
}

}  // namespace kv2
