// SPDX-License-Identifier: Apache-2.0
// Weights: every tensor is asked for by name and shape before anything is allocated; and what a fingerprint
// covers.
#include "model/weights.h"

#include "model/model.h"
#include "model/model_impl.h"
#include "model/test_models.h"
#include "ops/reference/reference.h"

namespace kv2 {
namespace {

using testing::expect_error;
using testing::TinyGguf;

struct Opened {
  explicit Opened(const TinyGguf& tiny)
      : bytes(tiny.bytes()), file(GgufFile::parse(testing::as_bytes(bytes), "tiny")) {}
  std::string bytes;
  std::unique_ptr<GgufFile> file;
};
void check(const TinyGguf& tiny) {
  const Opened o(tiny);
  check_tensors(*o.file, ModelConfig::from_gguf(*o.file));
}

TEST(Weights, EveryTensorIsNeeded) {
  const TinyGguf good("llama");
  EXPECT_NO_THROW(check(good));
  for (const auto& [name, dims] : good.tensors) {
    if (name == "token_embd.weight") continue;  // the config itself asks for it
    SCOPED_TRACE(name);
    TinyGguf missing = good, wide = good, transposed = good;
    missing.tensors.erase(name);
    expect_error(ErrorCode::BadFile, {"missing", name}, [&] { check(missing); });
    wide.tensors[name].back() += 1;
    expect_error(ErrorCode::BadFile, {"expected [", "file has ["}, [&] { check(wide); });
    if (dims.size() < 2 || dims[0] == dims[1]) continue;
    transposed.tensors[name] = {dims[1], dims[0]};
    expect_error(ErrorCode::BadFile, {"expected [", "file has ["}, [&] { check(transposed); });
  }
}

TEST(Weights, AMessageNamesLayerExpectedAndFound) {
  TinyGguf file("llama");
  file.tensors["blk.1.attn_k.weight"] = {32, 8};
  expect_error(ErrorCode::BadFile, {"layer 1: attn_k.weight: expected [16, 32], file has [8, 32]"},
               [&] { check(file); });
}

TEST(Weights, BiasesAndNormsOfAnArchitectureAreNeeded) {
  expect_error(ErrorCode::BadFile, {"layer 0: attn_q.bias", "[32]"}, [] { check(TinyGguf("qwen2")); });
  expect_error(ErrorCode::BadFile, {"layer 0: attn_q_norm.weight", "[16]"}, [] { check(TinyGguf("qwen3")); });
}

TEST(Weights, ABiasNobodyAddsIsRefused) {
  TinyGguf file("llama");
  file.tensors["blk.1.ffn_up.bias"] = {24};
  expect_error(ErrorCode::Unsupported, {"blk.1.ffn_up.bias"}, [&] { check(file); });
  file.tensors.erase("blk.1.ffn_up.bias");
  file.tensors["rope_freqs.weight"] = {8};
  file.tensors["something.else"] = {3};  // a warning
  EXPECT_NO_THROW(check(file));
}

TEST(Weights, PlanEqualsWhatIsMade) {
  for (const char* head : {"", "output.weight"}) {
    TinyGguf tiny("llama");
    if (*head != 0) tiny.tensors[head] = {32, 10};
    const Opened o(tiny);
    const auto backend = make_reference_backend(LinearPrecision::F32);
    const ModelConfig config = ModelConfig::from_gguf(*o.file);
    const ModelWeights weights = load_weights(*o.file, config, *backend);
    const double planned = static_cast<double>(plan_weight_bytes(*o.file, config, *backend));
    EXPECT_NEAR(static_cast<double>(weights.bytes()) / planned, 1.0, 0.01);
  }
}

std::string fingerprint_of(const TinyGguf& tiny, const std::function<void(ModelConfig&)>& bend = {}) {
  const Opened o(tiny);
  ModelConfig config = ModelConfig::from_gguf(*o.file);
  if (bend) bend(config);
  return compute_fingerprint(*o.file, config);
}

TEST(Fingerprint, CoversConfigTensorsAndPairing) {
  const TinyGguf good("llama");
  const std::string first = fingerprint_of(good);
  EXPECT_EQ(first, fingerprint_of(good));
  EXPECT_TRUE(first.starts_with("llama-"));
  EXPECT_EQ(first.size(), 6u + 32u);
  EXPECT_NE(first, fingerprint_of(good, [](ModelConfig& c) { c.rope.pairing = RopePairing::Halves; }));
  EXPECT_NE(first, fingerprint_of(good, [](ModelConfig& c) { c.rms_epsilon = 2e-5f; }));
  TinyGguf theta = good, extra = good;
  theta.f32("rope.freq_base", 10001);
  extra.tensors["something.else"] = {3};
  EXPECT_NE(first, fingerprint_of(theta));
  EXPECT_NE(first, fingerprint_of(extra));

  Opened flipped(good);
  flipped.bytes[flipped.bytes.size() - 2] ^= 1;  // one bit of one weight
  EXPECT_NE(first, compute_fingerprint(*flipped.file, ModelConfig::from_gguf(*flipped.file)));
}

}  // namespace
}  // namespace kv2
