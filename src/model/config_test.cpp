// SPDX-License-Identifier: Apache-2.0
// Both readers of ModelConfig: what good files say, and one clear refusal for everything that is wrong or not
// computed.
#include "model/config.h"

#include <cmath>

#include "model/arch.h"
#include "model/test_models.h"

namespace kv2 {
namespace {

using testing::expect_error;
using testing::tiny_config;
using testing::TinyGguf;
using testing::write_hf;
using Json = nlohmann::json;

ModelConfig read(const TinyGguf& file) {
  const std::string bytes = file.bytes();
  return ModelConfig::from_gguf(*GgufFile::parse(testing::as_bytes(bytes), "tiny"));
}
ModelConfig read(const Json& config, const std::string& generation = "") {
  return ModelConfig::from_hf(*write_hf(config.dump(), generation));
}
void expect_gguf_error(ErrorCode code, testing::Parts parts, const TinyGguf& file) {
  expect_error(code, parts, [&] { read(file); });
}
void expect_hf_error(ErrorCode code, testing::Parts parts, const Json& config) {
  expect_error(code, parts, [&] { read(config); });
}
Json with(const char* key, Json value) {
  Json c = tiny_config();
  c[key] = std::move(value);
  return c;
}

TEST(GgufConfig, ReadsAModelWithDefaults) {
  const ModelConfig c = read(TinyGguf("llama"));
  EXPECT_EQ(c.architecture, Architecture::Llama);
  EXPECT_EQ(c.n_layers, 2);
  EXPECT_EQ(c.hidden, 32);
  EXPECT_EQ(c.n_heads, 2);
  EXPECT_EQ(c.n_kv_heads, 1);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.intermediate, 24);
  EXPECT_EQ(c.vocab, 10);
  EXPECT_EQ(c.context, 128);
  EXPECT_EQ(c.rms_epsilon, 1e-5f);
  EXPECT_EQ(c.rope.theta, 10000);
  EXPECT_EQ(c.rope.pairing, RopePairing::Adjacent);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_FALSE(c.qkv_bias || c.output_bias || c.qk_norm);
}

TEST(GgufConfig, ArchitecturesDiffer) {
  const ModelConfig q2 = read(TinyGguf("qwen2")),
                    q3 = read(TinyGguf("qwen3").u32("attention.key_length", 48));
  EXPECT_EQ(q2.rope.pairing, RopePairing::Halves);
  EXPECT_TRUE(q2.qkv_bias);
  EXPECT_FALSE(q2.qk_norm);
  EXPECT_EQ(q3.rope.pairing, RopePairing::Halves);
  EXPECT_TRUE(q3.qk_norm);
  EXPECT_FALSE(q3.qkv_bias);
  EXPECT_EQ(q3.head_dim, 48);
}

TEST(GgufConfig, ReadsRopeTokensAndTheHead) {
  TinyGguf file("llama");
  file.f32("rope.freq_base", 5e5f).text("rope.scaling.type", "linear").f32("rope.scaling.factor", 4);
  file.token("eos_token_id", 3).token("eot_token_id", 7).token("eom_token_id", 3).token("bos_token_id", 1);
  file.tensors["output.weight"] = {32, 10};
  file.tensors["rope_freqs.weight"] = {8};
  file.tensors["blk.0.attn_q.bias"] = {32};
  const ModelConfig c = read(file);
  EXPECT_EQ(c.rope.theta, 5e5);
  EXPECT_EQ(c.rope.scaling, RopeConfig::Scaling::Linear);
  EXPECT_EQ(c.rope.factor, 4);
  EXPECT_EQ(c.rope.frequency_factors.size(), 8u);
  EXPECT_EQ(c.eos, (std::vector<int32_t>{3, 7}));
  EXPECT_EQ(c.bos, 1);
  EXPECT_FALSE(c.tied_embeddings);
  EXPECT_TRUE(c.qkv_bias);
}

TEST(GgufConfig, RefusesWhatIsMissing) {
  for (const char* key : {"block_count", "context_length", "embedding_length", "feed_forward_length",
                          "attention.head_count", "attention.layer_norm_rms_epsilon"})
    expect_gguf_error(ErrorCode::BadFile, {key}, TinyGguf("llama").without(key));
  TinyGguf file("llama");
  file.tensors.erase("token_embd.weight");
  expect_gguf_error(ErrorCode::BadFile, {"token_embd.weight", "missing"}, file);
}

TEST(GgufConfig, RefusesValuesOutOfRange) {
  for (const char* key : {"block_count", "context_length", "embedding_length", "feed_forward_length",
                          "attention.head_count", "attention.head_count_kv", "attention.key_length"})
    for (const uint32_t value : {0u, 3000000000u, UINT32_MAX}) {
      SCOPED_TRACE(std::string(key) + " = " + std::to_string(value));
      EXPECT_THROW(read(TinyGguf("llama").u32(key, value)), Error);
    }
  expect_gguf_error(ErrorCode::BadFile, {"2 attention heads", "3 KV heads"},
                    TinyGguf("llama").u32("attention.head_count_kv", 3));
  expect_gguf_error(ErrorCode::BadFile, {"embedding_length 32", "head_count 3"},
                    TinyGguf("llama").u32("attention.head_count", 3));
  expect_gguf_error(ErrorCode::Unsupported, {"head_dim is 24", "multiples of 16"},
                    TinyGguf("llama").u32("attention.key_length", 24));
  expect_gguf_error(ErrorCode::Unsupported, {"head_dim is 512"},
                    TinyGguf("llama").u32("attention.key_length", 512));
  expect_gguf_error(ErrorCode::BadFile, {"epsilon"},
                    TinyGguf("llama").f32("attention.layer_norm_rms_epsilon", NAN));
  expect_gguf_error(ErrorCode::BadFile, {"epsilon"},
                    TinyGguf("llama").f32("attention.layer_norm_rms_epsilon", -1));
  for (const float theta : {0.0f, -1.0f, NAN, INFINITY})
    expect_gguf_error(ErrorCode::BadFile, {"rope theta"}, TinyGguf("llama").f32("rope.freq_base", theta));
  expect_gguf_error(ErrorCode::BadFile, {"eos_token_id", "10"}, TinyGguf("llama").token("eos_token_id", 10));
  expect_gguf_error(ErrorCode::BadFile, {"bos_token_id"},
                    TinyGguf("llama").token("bos_token_id", UINT32_MAX));
  TinyGguf freqs("llama");
  freqs.tensors["rope_freqs.weight"] = {7};
  expect_gguf_error(ErrorCode::BadFile, {"rope_freqs.weight", "[8]", "[7]"}, freqs);
}

TEST(GgufConfig, RefusesWhatIsNotComputed) {
  expect_gguf_error(ErrorCode::Unsupported, {"'mamba'", "llama, qwen2, qwen3"}, TinyGguf("mamba"));
  expect_gguf_error(ErrorCode::Unsupported, {"expert_count"}, TinyGguf("llama").u32("expert_count", 8));
  expect_gguf_error(ErrorCode::Unsupported, {"sliding_window", "64"},
                    TinyGguf("qwen2").u32("attention.sliding_window", 64));
  EXPECT_NO_THROW(read(TinyGguf("qwen2").u32("attention.sliding_window", 128)))
      << "no shorter than the context";
  expect_gguf_error(ErrorCode::Unsupported, {"yarn", "linear"},
                    TinyGguf("llama").text("rope.scaling.type", "yarn"));
  expect_gguf_error(ErrorCode::Unsupported, {"partial"}, TinyGguf("llama").u32("rope.dimension_count", 8));
  expect_gguf_error(ErrorCode::Unsupported, {"keys", "values"},
                    TinyGguf("llama").u32("attention.value_length", 32));
}

TEST(GgufConfig, AnArrayOfOneValuePerLayerIsThatValue) {
  TinyGguf file("llama");
  const auto array = [&](uint32_t a, uint32_t b) {
    file.keys["llama.attention.head_count_kv"] = [=](testing::GgufWriter& w, const std::string& k) {
      w.array(k, 4, 2, testing::le(a) + testing::le(b));
    };
  };
  array(1, 1);
  EXPECT_EQ(read(file).n_kv_heads, 1);
  array(1, 2);
  expect_gguf_error(ErrorCode::Unsupported, {"head_count_kv", "differs"}, file);
}

TEST(HfConfig, ReadsTheOldGeneration) {
  Json json = tiny_config();
  json["torch_dtype"] = "bfloat16";
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  json["eos_token_id"] = 4;
  const ModelConfig c = read(json, R"({"eos_token_id": [5, 4]})");
  EXPECT_EQ(c.architecture, Architecture::Qwen3);
  EXPECT_EQ(c.head_dim, 32);
  EXPECT_EQ(c.vocab, 11);
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_EQ(c.rope.pairing, RopePairing::Halves);
  EXPECT_EQ(c.rope.scaling, RopeConfig::Scaling::Linear);
  EXPECT_EQ(c.rope.factor, 2);
  EXPECT_EQ(c.eos, (std::vector<int32_t>{5, 4}));
  EXPECT_TRUE(c.qk_norm && c.tied_embeddings);
  EXPECT_FALSE(c.qkv_bias);
}

TEST(HfConfig, ReadsTheNewGeneration) {
  Json json = tiny_config();
  json["architectures"] = {"LlamaForCausalLM"};
  json.erase("rope_theta");
  json.erase("head_dim");
  json["dtype"] = "float32";
  json["attention_bias"] = true;
  json["rope_parameters"] = {{"rope_type", "llama3"},   {"rope_theta", 5e5},
                             {"factor", 8.0},           {"low_freq_factor", 1.0},
                             {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 64}};
  const ModelConfig c = read(json);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.rope.theta, 5e5);
  EXPECT_EQ(c.rope.scaling, RopeConfig::Scaling::Llama3);
  EXPECT_EQ(c.rope.original_context, 64);
  EXPECT_TRUE(c.qkv_bias && c.output_bias);
  json["rope_scaling"] = json["rope_parameters"];
  EXPECT_EQ(read(json).rope.theta, 5e5);
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  expect_hf_error(ErrorCode::BadFile, {"rope_scaling", "rope_parameters", "differ"}, json);
}

TEST(HfConfig, RefusesWhatIsWrong) {
  for (const char* key : {"num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size",
                          "max_position_embeddings", "vocab_size"}) {
    Json json = tiny_config();
    json.erase(key);
    expect_hf_error(ErrorCode::BadFile, {key, "missing"}, json);
    for (const Json& value : {Json(0), Json(-1), Json(1e30), Json("64"), Json(2.5), Json(UINT64_MAX),
                              Json(INT64_MAX), Json::array()}) {
      SCOPED_TRACE(std::string(key) + " = " + value.dump());
      EXPECT_THROW(read(with(key, value)), Error);
    }
  }
  expect_hf_error(ErrorCode::BadFile, {"4 attention heads", "3 KV heads"}, with("num_key_value_heads", 3));
  expect_hf_error(ErrorCode::Unsupported, {"head_dim is 20"}, with("head_dim", 20));
  expect_hf_error(ErrorCode::BadFile, {"eos_token_id", "11"}, with("eos_token_id", 11));
  expect_hf_error(ErrorCode::BadFile, {"eos_token_id"}, with("eos_token_id", {1, -2}));
  expect_hf_error(ErrorCode::BadFile, {"rope_scaling"}, with("rope_scaling", "linear"));
  expect_hf_error(ErrorCode::BadFile, {"tie_word_embeddings"}, with("tie_word_embeddings", 1));
  expect_hf_error(ErrorCode::BadFile, {"architectures"}, with("architectures", nullptr));
  expect_error(ErrorCode::BadFile, {"config.json"}, [] { ModelConfig::from_hf(*write_hf("[1, 2")); });
}

TEST(HfConfig, RefusesWhatIsNotComputed) {
  expect_hf_error(ErrorCode::Unsupported,
                  {"'MambaForCausalLM'", "LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"},
                  with("architectures", {"MambaForCausalLM"}));
  expect_hf_error(ErrorCode::Unsupported, {"gelu", "silu"}, with("hidden_act", "gelu"));
  expect_hf_error(ErrorCode::Unsupported, {"mlp_bias"}, with("mlp_bias", true));
  expect_hf_error(ErrorCode::Unsupported, {"quantization_config"},
                  with("quantization_config", {{"bits", 4}}));
  expect_hf_error(ErrorCode::Unsupported, {"yarn", "llama3"},
                  with("rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}));
  expect_hf_error(ErrorCode::BadFile, {"factor"}, with("rope_scaling", {{"rope_type", "linear"}}));
  expect_hf_error(ErrorCode::Unsupported, {"sliding_attention"},
                  with("layer_types", {"full_attention", "sliding_attention"}));
  Json window = with("sliding_window", 64);
  EXPECT_NO_THROW(read(window)) << "use_sliding_window is false";
  window["use_sliding_window"] = true;
  window["max_window_layers"] = 2;
  EXPECT_NO_THROW(read(window)) << "no layer from 2 on";
  window["max_window_layers"] = 1;
  expect_hf_error(ErrorCode::Unsupported, {"sliding_window 64"}, window);
}

TEST(Rope, Llama3KeepsShortWavesInterpolatesLongOnesAndRampsBetween) {
  RopeConfig rope{.theta = 500000,
                  .scaling = RopeConfig::Scaling::Llama3,
                  .factor = 8,
                  .low_frequency_factor = 1,
                  .high_frequency_factor = 4,
                  .original_context = 8192};
  const auto scaled = rope.inv_frequency(128);
  rope.scaling = RopeConfig::Scaling::None;
  const auto plain = rope.inv_frequency(128);
  int kept = 0, divided = 0, between = 0;
  for (size_t i = 0; i < plain.size(); i++) {
    const double turns = 8192 * double{plain[i]} / (2 * M_PI);
    if (turns > 4) {
      EXPECT_EQ(scaled[i], plain[i]);
      kept++;
    } else if (turns < 1) {
      EXPECT_FLOAT_EQ(scaled[i], plain[i] / 8);
      divided++;
    } else {
      EXPECT_FLOAT_EQ(scaled[i], static_cast<float>(plain[i] * ((4 - turns) / 3 / 8 + (turns - 1) / 3)));
      between++;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(divided, 0);
  EXPECT_GT(between, 0);
}

TEST(Rope, FactorsDivideFrequencies) {
  RopeConfig rope{.theta = 100, .frequency_factors = {1, 2, 4, 8}};
  const auto f = rope.inv_frequency(8);
  for (int i = 0; i < 4; i++) EXPECT_FLOAT_EQ(f[i], static_cast<float>(std::pow(100.0, -i / 4.0) / (1 << i)));
}

}  // namespace
}  // namespace kv2
