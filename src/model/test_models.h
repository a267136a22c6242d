// SPDX-License-Identifier: Apache-2.0
// Tiny model files for the tests of this folder, honest ones that a test then bends.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "formats/test_expect.h"
#include "formats/test_writer.h"
#include "gtest/gtest.h"

namespace kv2::testing {

/// A GGUF model of 2 layers: hidden 32, 2 heads of 16, 1 KV head, intermediate 24, vocabulary 10.
struct TinyGguf {
  std::string arch = "llama";
  std::map<std::string, std::function<void(GgufWriter&, const std::string&)>>
      keys;                                              // written in order of name
  std::map<std::string, std::vector<uint64_t>> tensors;  // F32; dims fastest first

  explicit TinyGguf(std::string architecture) : arch(std::move(architecture)) {
    u32("block_count", 2), u32("context_length", 128), u32("embedding_length", 32),
        u32("feed_forward_length", 24);
    u32("attention.head_count", 2), u32("attention.head_count_kv", 1);
    f32("attention.layer_norm_rms_epsilon", 1e-5f);
    tensors["token_embd.weight"] = {32, 10};
    tensors["output_norm.weight"] = {32};
    for (int i = 0; i < 2; i++) {
      const std::string b = "blk." + std::to_string(i) + ".";
      tensors[b + "attn_norm.weight"] = tensors[b + "ffn_norm.weight"] = {32};
      tensors[b + "attn_q.weight"] = tensors[b + "attn_output.weight"] = {32, 32};
      tensors[b + "attn_k.weight"] = tensors[b + "attn_v.weight"] = {32, 16};
      tensors[b + "ffn_gate.weight"] = tensors[b + "ffn_up.weight"] = {32, 24};
      tensors[b + "ffn_down.weight"] = {24, 32};
    }
  }
  TinyGguf& u32(const std::string& key, uint32_t x) {
    keys[arch + "." + key] = [x](GgufWriter& w, const std::string& k) { w.u32(k, x); };
    return *this;
  }
  TinyGguf& f32(const std::string& key, float x) {
    keys[arch + "." + key] = [x](GgufWriter& w, const std::string& k) { w.f32(k, x); };
    return *this;
  }
  TinyGguf& text(const std::string& key, const std::string& x) {
    keys[arch + "." + key] = [x](GgufWriter& w, const std::string& k) { w.string(k, x); };
    return *this;
  }
  TinyGguf& token(const std::string& key, uint32_t x) {
    keys["tokenizer.ggml." + key] = [x](GgufWriter& w, const std::string& k) { w.u32(k, x); };
    return *this;
  }
  TinyGguf& without(const std::string& key) {
    keys.erase(arch + "." + key);
    return *this;
  }
  std::string bytes() const {
    GgufWriter w;
    w.string("general.architecture", arch);
    for (const auto& [key, write] : keys) write(w, key);
    float value = 0.5f;
    for (const auto& [name, dims] : tensors) {
      uint64_t n = 1;
      for (uint64_t d : dims) n *= d;
      std::string data;
      for (uint64_t i = 0; i < n; i++) data += le(value += 0.125f);
      w.tensor(name, dims, 0, data);
    }
    return w.bytes();
  }
};

/// config.json of a small Qwen 3, to be bent.
inline nlohmann::json tiny_config() {
  return {{"architectures", {"Qwen3ForCausalLM"}},
          {"num_hidden_layers", 2},
          {"hidden_size", 64},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 32},
          {"intermediate_size", 48},
          {"max_position_embeddings", 256},
          {"vocab_size", 11},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 1000000.0},
          {"tie_word_embeddings", true}};
}

/// A directory with this config.json and one tensor, enough for ModelConfig::from_hf.
inline std::unique_ptr<HfDirectory> write_hf(const std::string& config, const std::string& generation = "") {
  static int counter = 0;
  const std::string dir =
      ::testing::TempDir() + "kv2-config-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
  std::filesystem::create_directories(dir);
  std::ofstream(dir + "/config.json") << config;
  if (!generation.empty()) std::ofstream(dir + "/generation_config.json") << generation;
  const float one = 1;
  const SafetensorsTensor tensor{"one", DType::F32, {1}, std::as_bytes(std::span(&one, 1))};
  write_safetensors(dir + "/model.safetensors", {}, std::span(&tensor, 1));
  return HfDirectory::open(dir);
}

}  // namespace kv2::testing
