// SPDX-License-Identifier: Apache-2.0
// SmolLM2-135M-Instruct against an independent implementation: 5 prompts of real text, the last 64 positions
// of each, KL(reference ‖ kv2) over the reference's 256 likeliest tokens and one bucket for the rest, and the
// best token. Goldens: tools/make_smollm2_logits.py. The model itself is no part of the repository:
// scripts/fetch_models gets it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "engine/device.h"
#include "f32_attention.h"
#include "formats/safetensors.h"
#include "kv2/error.h"
#include "quant/transform.h"
#include "support.h"

namespace kv2::test {
namespace {

constexpr int kPositions = 64, kKept = 128;

struct Golden {
  std::vector<int32_t> tokens, lengths;
  struct Distributions {
    std::vector<int32_t> ids;
    std::vector<float> log_probs, rest;
  } kv16, plain;
};
Golden load_golden() {
  const auto file =
      SafetensorsFile::open(std::string(KV2_SOURCE_DIR) + "/tests/goldens/smollm2_logits.safetensors");
  const auto distributions = [&](const std::string& name) -> Golden::Distributions {
    return {read_values<int32_t>(*file, name + ".ids"), read_values<float>(*file, name + ".log_probs"),
            read_values<float>(*file, name + ".rest")};
  };
  return {read_values<int32_t>(*file, "tokens"), read_values<int32_t>(*file, "lengths"),
          distributions("kv16"), distributions("plain")};
}

/// KL over 129 outcomes of one position, in nats and double precision.
double divergence(std::span<const float> logits, const int32_t* ids, const float* log_probs, float rest) {
  const double best = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (float l : logits) total += std::exp(l - best);
  const double log_total = best + std::log(total);
  double kl = 0, kept = 0;
  for (int i = 0; i < kKept; i++) {
    const double q = logits[ids[i]] - log_total;
    kept += std::exp(q);
    kl += std::exp(double{log_probs[i]}) * (log_probs[i] - q);
  }
  return kl + std::exp(double{rest}) * (rest - std::log(std::max(1e-30, 1 - kept)));
}

struct Agreement {
  double mean_kl = 0, max_kl = 0, top1 = 0;  // sums while positions are added

  void add(std::span<const float> logits, const Golden::Distributions& d, size_t at) {
    const double kl = divergence(logits, &d.ids[at * kKept], &d.log_probs[at * kKept], d.rest[at]);
    mean_kl += kl;
    max_kl = std::max(max_kl, kl);
    top1 += std::max_element(logits.begin(), logits.end()) - logits.begin() == d.ids[at * kKept];
  }
  void finish(const char* name, size_t n) {
    mean_kl /= static_cast<double>(n);
    top1 /= static_cast<double>(n);
    std::printf("%s: mean KL %.2e, max %.2e, top-1 equal %.2f %%\n", name, mean_kl, max_kl, 100 * top1);
  }
};
struct Agreements {
  Agreement kv16, plain;
};

enum class Cache { F32, Bf16 };

Agreements compare(const std::string& path, LinearPrecision precision, Cache cache) {
  const Golden golden = load_golden();
  const auto device = open_device({.device = "cpu", .n_threads = 0, .linear_precision = precision});
  F32Attention f32_attention(*device);
  Backend& backend = cache == Cache::F32 ? f32_attention : *device;
  const auto model = Model::load(path, backend, 128);
  const size_t vocab = model->config().vocab;
  Agreements out;
  size_t first = 0, at = 0;
  for (const int32_t length : golden.lengths) {
    f32_attention.forget();
    Runner runner(*model, CacheSpec{}, {.context_tokens = 512, .n_sequences = 1, .chunk_tokens = 128});
    const auto tokens = std::span(golden.tokens).subspan(first, length);
    const std::vector<float> logits = runner.feed(runner.open(), tokens, 128, 0);
    for (int i = length - kPositions; i < length; i++, at++) {
      out.kv16.add({logits.data() + i * vocab, vocab}, golden.kv16, at);
      out.plain.add({logits.data() + i * vocab, vocab}, golden.plain, at);
    }
    first += length;
  }
  EXPECT_EQ(at, 5u * kPositions);
  out.kv16.finish("kv16", at);
  out.plain.finish("plain", at);
  return out;
}

class SmolLm2 : public testing::Test {
 protected:
  void SetUp() override {
    path_ = user_cache_dir() + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!std::filesystem::exists(path_))
      GTEST_SKIP() << path_ << " is absent; scripts/fetch_models fetches it";
  }
  std::string path_;
};

TEST_F(SmolLm2, F32LinearsAgreeWithAnIndependentImplementation) {
  const Agreements a = compare(path_, LinearPrecision::F32, Cache::F32);
  EXPECT_LE(a.plain.mean_kl, 1e-5);
  EXPECT_GE(a.plain.top1, 0.995);
}

TEST_F(SmolLm2, F32LinearsOnABf16CacheAgree) {
  const Agreements a = compare(path_, LinearPrecision::F32, Cache::Bf16);
  EXPECT_LE(a.kv16.mean_kl, 2e-5);
  EXPECT_LE(a.plain.mean_kl, 7e-5);
  EXPECT_GE(a.kv16.top1, 0.995);
  EXPECT_GE(a.plain.top1, 0.995);
}

// Weights as the file codes them, rows in 16 bits of fixed point per 32: as near as f32.
TEST_F(SmolLm2, LinearsFromTheFilesCodesAgree) {
  const Agreements exact = compare(path_, LinearPrecision::Auto, Cache::F32);
  EXPECT_LE(exact.plain.mean_kl, 1e-5);
  EXPECT_GE(exact.plain.top1, 0.995);
  const Agreements a = compare(path_, LinearPrecision::Auto, Cache::Bf16);
  EXPECT_LE(a.kv16.mean_kl, 3e-5);
  EXPECT_LE(a.plain.mean_kl, 7e-5);
  EXPECT_GE(a.kv16.top1, 0.99);
}

TEST_F(SmolLm2, PlanOfCodedWeightsEqualsWhatIsMade) {
  const auto device = open_device({.device = "cpu", .n_threads = 1});
  const auto model = Model::load(path_, *device, 8);
  const double planned = static_cast<double>(plan_model(model->file(), *device, 8).weight_bytes);
  EXPECT_NEAR(static_cast<double>(model->weight_bytes()) / planned, 1, 0.01);
  EXPECT_LE(model->weight_bytes(), 100u << 20);  // not far from the file's own bytes: no second form of them
}

TEST_F(SmolLm2, CodedWeightsCannotAbsorbABasis) {
  const auto device = open_device({.device = "cpu", .n_threads = 1});
  const auto model = Model::load(path_, *device, 8);
  const KvShape shape = model->config().kv_shape();
  const LayerTransforms turned{{}, hadamard_transform(shape.n_kv_heads, shape.head_dim)};
  const std::vector<LayerTransforms> transforms(shape.n_layers, turned);
  try {
    model->absorb_values(transforms);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::Unsupported);
    for (const char* word : {"layer 0", "attn_output", "Q4_1", "--linears", "--device"})
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << word << " in: " << e.what();
  }
  EXPECT_FALSE(model->has_absorbed_values());
  Runner runner(*model, CacheSpec{}, {.context_tokens = 64, .n_sequences = 1, .chunk_tokens = 8});
  EXPECT_EQ(runner.feed(runner.open(), random_tokens(5, 100, 1), 5, 0).size(), 5u * model->config().vocab)
      << "the model goes on as it was";
}

TEST_F(SmolLm2, Bf16LinearsAgreeWithAnIndependentImplementation) {
  const Agreements a = compare(path_, LinearPrecision::Bf16, Cache::Bf16);
  for (const Agreement& one : {a.kv16, a.plain}) {
    EXPECT_LE(one.mean_kl, 2e-3);
    EXPECT_GE(one.top1, 0.97);
  }
}

}  // namespace
}  // namespace kv2::test
