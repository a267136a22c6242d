// SPDX-License-Identifier: Apache-2.0
#include "support.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "engine/transforms.h"
#include "formats/safetensors.h"

namespace kv2::test {

std::string fixture(const std::string& name) {
  return std::string(KV2_SOURCE_DIR) + "/tests/fixtures/" + name;
}

Reference load_reference(const std::string& directory) {
  const auto file = SafetensorsFile::open(directory + "/reference.safetensors");
  const auto tokens = read_values<int64_t>(*file, "tokens");
  return {{tokens.begin(), tokens.end()},
          read_values<float>(*file, "logits"),
          read_values<float>(*file, "logits_kv16")};
}

namespace {

/// Collects random tensors and writes them as one safetensors file.
class Weights {
 public:
  explicit Weights(uint64_t seed) : random_(seed) {}

  void add(const std::string& name, std::vector<int64_t> shape, float mean, float deviation) {
    int64_t n = 1;
    for (int64_t s : shape) n *= s;
    std::normal_distribution<float> noise(mean, deviation);
    std::vector<float>& v = values_.emplace_back(n);
    for (float& x : v) x = noise(random_);
    tensors_.push_back({name, DType::F32, std::move(shape), {}});
  }
  void write(const std::string& path) {
    for (size_t i = 0; i < tensors_.size(); i++) tensors_[i].bytes = std::as_bytes(std::span(values_[i]));
    write_safetensors(path, {}, tensors_);
  }

 private:
  std::mt19937_64 random_;
  std::vector<std::vector<float>> values_;
  std::vector<SafetensorsTensor> tensors_;
};

}  // namespace

std::string write_random_model(const RandomModel& m) {
  static int counter = 0;
  const std::string dir =
      testing::TempDir() + "kv2-model-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
  std::filesystem::create_directories(dir);
  std::ofstream(dir + "/config.json")
      << "{\"architectures\": [\"" << m.architecture << "\"], \"num_hidden_layers\": " << m.n_layers
      << ", \"hidden_size\": " << m.hidden << ", \"num_attention_heads\": " << m.n_heads
      << ", \"num_key_value_heads\": " << m.n_kv_heads << ", \"head_dim\": " << m.head_dim
      << ", \"intermediate_size\": " << m.intermediate << ", \"vocab_size\": " << m.vocab
      << ", \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-6, "
      << "\"rope_theta\": 10000.0, \"tie_word_embeddings\": false}";
  Weights w(m.seed);
  const auto matrix = [&](const std::string& name, int64_t n_out, int64_t n_in, float gain) {
    w.add(name + ".weight", {n_out, n_in}, 0, gain / std::sqrt(static_cast<float>(n_in)));
  };
  const auto norm = [&](const std::string& name, int64_t n) { w.add(name + ".weight", {n}, 1.0f, 0.3f); };
  const int64_t q = int64_t{m.n_heads} * m.head_dim, kv = int64_t{m.n_kv_heads} * m.head_dim;
  w.add("model.embed_tokens.weight", {m.vocab, m.hidden}, 0.2f, 1.0f);
  norm("model.norm", m.hidden);
  matrix("lm_head", m.vocab, m.hidden,
         2.5f);  // logits of a few units: sampling and arg max depend on the context
  for (int i = 0; i < m.n_layers; i++) {
    const std::string l = "model.layers." + std::to_string(i) + ".";
    norm(l + "input_layernorm", m.hidden);
    norm(l + "post_attention_layernorm", m.hidden);
    matrix(l + "self_attn.q_proj", q, m.hidden, 1.3f);
    matrix(l + "self_attn.k_proj", kv, m.hidden, 1.3f);
    matrix(l + "self_attn.v_proj", kv, m.hidden, 1.0f);
    matrix(l + "self_attn.o_proj", m.hidden, q, 1.0f);
    if (m.architecture == "Qwen2ForCausalLM")
      for (const auto& [name, width] : {std::pair{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}})
        w.add(l + "self_attn." + name + ".bias", {width}, 0.3f, 0.6f);
    else
      norm(l + "self_attn.q_norm", m.head_dim), norm(l + "self_attn.k_norm", m.head_dim);
    matrix(l + "mlp.gate_proj", m.intermediate, m.hidden, 1.0f);
    matrix(l + "mlp.up_proj", m.intermediate, m.hidden, 1.0f);
    matrix(l + "mlp.down_proj", m.hidden, m.intermediate, 1.0f);
  }
  w.write(dir + "/model.safetensors");
  return dir;
}

std::vector<int32_t> random_tokens(int64_t n, int vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> out(n);
  for (int32_t& t : out) t = static_cast<int32_t>(random() % vocab);
  return out;
}

Runner::Runner(Model& model, const CacheSpec& spec, CacheCapacity capacity) : model_(model) {
  const KvShape shape = model.config().kv_shape();
  FittedMethod fitted = fit_method(spec, shape, nullptr);
  cache_ = std::make_unique<KvCache>(model.backend(), spec, shape, capacity, std::move(fitted));
}

SequenceId Runner::open() {
  const auto id = cache_->open();
  if (!id) throw std::runtime_error("no room for a sequence");
  return *id;
}

std::vector<float> Runner::step(const std::vector<Piece>& pieces, int64_t full_until) {
  Batch batch;
  for (const Piece& p : pieces) {
    const int n = static_cast<int>(p.tokens.size());
    if (!cache_->reserve(p.sequence, n)) throw std::runtime_error("no pages");
    batch.slices.push_back({.sequence = p.sequence,
                            .first_row = static_cast<int>(batch.tokens.size()),
                            .n_rows = n,
                            .full_until = full_until});
    batch.tokens.insert(batch.tokens.end(), p.tokens.begin(), p.tokens.end());
  }
  for (size_t i = 0; i < batch.tokens.size(); i++) batch.logit_rows.push_back(static_cast<int32_t>(i));
  std::vector<float> logits(batch.tokens.size() * model_.config().vocab);
  model_.forward(batch, *cache_, logits, nullptr);
  return logits;
}

std::vector<float> Runner::feed(SequenceId sequence, std::span<const int32_t> tokens, int64_t chunk,
                                int64_t full_until) {
  std::vector<float> all;
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    const auto part = tokens.subspan(at, std::min<size_t>(chunk, tokens.size() - at));
    const std::vector<float> logits = step({{sequence, part}}, full_until);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

PageBytes page_bytes(const KvCache& cache, SequenceId sequence) {
  PageBytes out;
  const KvShape& shape = cache.shape();
  const int64_t n = cache.n_tokens(sequence), next_page = n / kPageTokens;
  const size_t row = static_cast<size_t>(shape.head_dim) * 2, side = kPageTokens * row;
  for (int64_t page = 0; page * kPageTokens < n; page++) {
    const bool packed = cache.rule().packed(static_cast<int>(next_page), static_cast<int>(page));
    for (int layer = 0; layer < shape.n_layers; layer++)
      for (int head = 0; head < shape.n_kv_heads; head++) {
        std::vector<std::byte> bytes = packed ? cache.packed_bytes(sequence, page, layer, head)
                                              : cache.full_bytes(sequence, page, layer, head);
        EXPECT_FALSE(bytes.empty()) << "page " << page << " of " << n << " tokens, "
                                    << (packed ? "packed" : "full");
        if (!packed && !bytes.empty()) {
          const size_t rows = std::min<int64_t>(kPageTokens, n - page * kPageTokens) * row;
          std::copy_n(bytes.begin() + side, rows, bytes.begin() + rows);  // K rows, then V rows
          bytes.resize(2 * rows);
        }
        (packed ? out.packed : out.full).push_back(std::move(bytes));
      }
  }
  return out;
}

}  // namespace kv2::test
