// SPDX-License-Identifier: Apache-2.0
// The parsers on real models, where those are present: scripts/fetch_models puts SmolLM2 into the user's
// cache; needle-15m stays outside the project. A test whose model is absent says so and is not run.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "formats/gguf.h"
#include "formats/inspect.h"
#include "formats/safetensors.h"

namespace kv2 {
namespace {

// Moments of tensors in double precision, from the Python packages gguf and safetensors.
constexpr double kEmbeddingMean = -0.000542289044915, kEmbeddingRms = 0.135579292322;
constexpr double kValueMean = -0.000749747648283, kValueRms = 0.184677493544;
constexpr double kUpMean = -0.000433448232331, kUpRms = 0.206438504673;

/// Mean and root mean square of the whole tensor.
std::pair<double, double> moments(const TensorFile& file, const TensorInfo& t) {
  std::vector<float> x(static_cast<size_t>(t.n_elements()));
  file.read_rows(t, 0, t.shape.size() == 1 ? t.n_elements() : t.n_elements() / t.shape.back(), x.data());
  double sum = 0, squares = 0;
  for (const float v : x) {
    sum += v;
    squares += static_cast<double>(v) * v;
  }
  const double n = static_cast<double>(x.size());
  return {sum / n, std::sqrt(squares / n)};
}

TEST(RealFiles, SmolLm2Gguf) {
  const std::string path = user_cache_dir() + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path))
    GTEST_SKIP() << "not run: " << path << " is absent (scripts/fetch_models gets it)";
  const auto file = GgufFile::open(path);
  EXPECT_EQ(file->string("general.architecture"), "llama");
  EXPECT_EQ(file->integer("llama.block_count"), 30);
  EXPECT_EQ(file->find_strings("tokenizer.ggml.tokens")->size(), 49152u);
  ASSERT_EQ(file->tensors().size(), 272u);
  EXPECT_EQ(file->find("token_embd.weight")->shape, (std::vector<int64_t>{49152, 576}));
  const auto [mean, rms] = moments(*file, *file->find("token_embd.weight"));
  EXPECT_NEAR(mean, kEmbeddingMean, 1e-9);
  EXPECT_NEAR(rms, kEmbeddingRms, 1e-9);
  const auto [mean_v, rms_v] = moments(*file, *file->find("blk.17.attn_v.weight"));
  EXPECT_NEAR(mean_v, kValueMean, 1e-9);
  EXPECT_NEAR(rms_v, kValueRms, 1e-9);
  EXPECT_GT(inspect_file(path, false).size(), 10000u);
}

TEST(RealFiles, Needle15m) {
  const std::string path = KV2_SOURCE_DIR "/../shared/models/needle-15m";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "not run: " << path << " is absent";
  const auto dir = HfDirectory::open(path);
  EXPECT_NE(dir->config_json().find("Qwen3ForCausalLM"), std::string::npos);
  EXPECT_FALSE(dir->generation_json().empty());
  ASSERT_EQ(dir->tensors().size(), 46u);
  int64_t n = 0;
  for (const TensorInfo& t : dir->tensors()) n += t.n_elements();
  EXPECT_EQ(n, 16782848);  // its README
  const auto [mean, rms] = moments(*dir, *dir->find("model.layers.3.mlp.up_proj.weight"));
  EXPECT_NEAR(mean, kUpMean, 1e-9);
  EXPECT_NEAR(rms, kUpRms, 1e-9);
}

}  // namespace
}  // namespace kv2
