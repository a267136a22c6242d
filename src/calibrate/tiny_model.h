// SPDX-License-Identifier: Apache-2.0
// A small random Qwen 3 checkpoint made on the fly, for the tests of calibrate/ and eval/ on the scalar
// reference backend. Header for tests only; its weights are large enough that logits differ clearly between
// tokens.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"
#include "formats/safetensors.h"
#include "model/model.h"
#include "ops/reference/reference.h"

namespace kv2::testing {

inline constexpr int kTinyVocab = 61, kTinyContext = 768, kTinyEos = 2, kTinyBos = 1;

class TinyModel {
 public:
  /// The weights do not depend on the context.
  explicit TinyModel(int max_rows, int context = kTinyContext) : context_(context) {
    static int count = 0;
    folder_ = std::filesystem::temp_directory_path() /
              ("kv2_tiny_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    std::filesystem::create_directories(folder_);
    write_config();
    write_weights();
    backend_ = make_reference_backend(LinearPrecision::F32);
    model_ = Model::load(folder_.string(), *backend_, max_rows);
  }
  ~TinyModel() {
    model_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  TinyModel(const TinyModel&) = delete;
  TinyModel& operator=(const TinyModel&) = delete;

  Model& operator*() { return *model_; }
  Model* operator->() { return model_.get(); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

 private:
  static constexpr int kLayers = 2, kHidden = 32, kHeads = 4, kKvHeads = 2, kHeadDim = 16, kIntermediate = 48;

  void write_text(const std::string& name, const std::string& text) {
    write_file_atomically(path(name), [&](std::FILE* f) { write_all(f, std::as_bytes(std::span(text))); });
  }

  void write_config() {
    const auto number = [](const char* key, auto value) { return fmt::format("\"{}\": {}, ", key, value); };
    write_text("config.json",
               R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", )" +
                   number("num_hidden_layers", kLayers) + number("hidden_size", kHidden) +
                   number("num_attention_heads", kHeads) + number("num_key_value_heads", kKvHeads) +
                   number("head_dim", kHeadDim) + number("intermediate_size", kIntermediate) +
                   number("vocab_size", kTinyVocab) + number("max_position_embeddings", context_) +
                   number("bos_token_id", kTinyBos) + number("eos_token_id", kTinyEos) +
                   R"("hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, )"
                   R"("tie_word_embeddings": true, "attention_bias": false, "torch_dtype": "float32"})");
  }

  void write_weights() {
    std::mt19937 random(7);
    std::vector<std::pair<SafetensorsTensor, std::vector<float>>> tensors;
    const auto add = [&](const std::string& name, std::vector<int64_t> shape, float mean, float spread) {
      int64_t n = 1;
      for (const int64_t s : shape) n *= s;
      std::normal_distribution<float> normal(mean, spread);
      std::vector<float> values(static_cast<size_t>(n));
      for (float& x : values) x = normal(random);
      tensors.emplace_back(SafetensorsTensor{name, DType::F32, std::move(shape), {}}, std::move(values));
    };
    add("model.embed_tokens.weight", {kTinyVocab, kHidden}, 0, 0.5f);
    add("model.norm.weight", {kHidden}, 1, 0.1f);
    for (int l = 0; l < kLayers; l++) {
      const std::string p = "model.layers." + std::to_string(l) + ".";
      add(p + "input_layernorm.weight", {kHidden}, 1, 0.1f);
      add(p + "self_attn.q_proj.weight", {kHeads * kHeadDim, kHidden}, 0, 0.3f);
      add(p + "self_attn.k_proj.weight", {kKvHeads * kHeadDim, kHidden}, 0, 0.3f);
      add(p + "self_attn.v_proj.weight", {kKvHeads * kHeadDim, kHidden}, 0, 0.3f);
      add(p + "self_attn.o_proj.weight", {kHidden, kHeads * kHeadDim}, 0, 0.2f);
      add(p + "self_attn.q_norm.weight", {kHeadDim}, 1.5f, 0.3f);
      add(p + "self_attn.k_norm.weight", {kHeadDim}, 1.5f, 0.3f);
      add(p + "post_attention_layernorm.weight", {kHidden}, 1, 0.1f);
      add(p + "mlp.gate_proj.weight", {kIntermediate, kHidden}, 0, 0.2f);
      add(p + "mlp.up_proj.weight", {kIntermediate, kHidden}, 0, 0.2f);
      add(p + "mlp.down_proj.weight", {kHidden, kIntermediate}, 0, 0.2f);
    }
    std::vector<SafetensorsTensor> views;
    for (auto& [tensor, values] : tensors) {
      tensor.bytes = std::as_bytes(std::span(values));
      views.push_back(tensor);
    }
    write_safetensors(path("model.safetensors"), {{"format", "pt"}}, views);
  }

  int context_;
  std::filesystem::path folder_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
};

inline std::vector<int32_t> random_tokens(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (int32_t& t : out) t = static_cast<int32_t>(random() % kTinyVocab);
  return out;
}

}  // namespace kv2::testing
