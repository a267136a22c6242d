// SPDX-License-Identifier: Apache-2.0
// W_o that has absorbed V's way back from its stored basis: the same logits as with the way back as an op of
// its own, for matrices that are no rotations and with means; the file's W_o again when asked for; and no use
// with a cache of another basis.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "engine/device.h"
#include "engine/engine.h"
#include "engine/transforms.h"
#include "kv2/error.h"
#include "support.h"

namespace kv2::test {
namespace {

/// Relative difference of logits with W_o absorbing and not.
constexpr double kSame = 1.5e-4;

/// Far from orthogonal and from symmetric, yet well conditioned: decode is a unit upper triangle.
Transform skewed(const KvShape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const size_t d = shape.head_dim;
  Transform t{.n_kv_heads = shape.n_kv_heads, .head_dim = shape.head_dim};
  for (int head = 0; head < shape.n_kv_heads; head++) {
    std::vector<double> decode(d * d), encode(d * d);
    for (size_t i = 0; i < d; i++) {
      decode[i * d + i] = 1;
      for (size_t j = i + 1; j < d; j++) decode[i * d + j] = 0.15 * normal(random);
    }
    for (size_t j = 0; j < d; j++)  // decode · encode = 1, column by column from below
      for (size_t i = d; i-- > 0;) {
        double x = i == j ? 1 : 0;
        for (size_t k = i + 1; k < d; k++) x -= decode[i * d + k] * encode[k * d + j];
        encode[i * d + j] = x;
      }
    t.decode.insert(t.decode.end(), decode.begin(), decode.end());
    t.encode.insert(t.encode.end(), encode.begin(), encode.end());
    for (size_t j = 0; j < d; j++) t.mean.push_back(static_cast<float>(2 + 0.5 * normal(random)));
  }
  return t;
}

/// V of every layer but the second in a basis of its own.
std::vector<LayerTransforms> bases(const ModelConfig& config, uint64_t seed) {
  std::vector<LayerTransforms> out(config.n_layers);
  for (int i = 0; i < config.n_layers; i++)
    if (i != 1) out[i].v = skewed(config.kv_shape(), seed + i);
  return out;
}

struct NoObserver final : Observer {
  void on_layer(const LayerActivations&) override {}
};

struct Case {
  const char *model, *device;
};

class Absorb : public testing::TestWithParam<Case> {
 protected:
  Absorb()
      : backend_(open_device(
            {.device = GetParam().device, .n_threads = 2, .linear_precision = LinearPrecision::F32})),
        model_(Model::load(fixture(GetParam().model), *backend_, 64)),
        tokens_(random_tokens(40, model_->config().vocab, 5)) {}

  std::vector<float> logits(const std::vector<LayerTransforms>& transforms, Observer* observer = nullptr) {
    KvCache cache(*backend_, CacheSpec{}, model_->config().kv_shape(),
                  {.context_tokens = 256, .n_sequences = 1, .chunk_tokens = 64}, transforms, {});
    const auto sequence = cache.open();
    EXPECT_TRUE(sequence && cache.reserve(*sequence, 40));
    Batch batch{.tokens = tokens_, .slices = {{.sequence = *sequence, .n_rows = 40}}, .logit_rows = {}};
    for (int i = 0; i < 40; i++) batch.logit_rows.push_back(i);
    std::vector<float> out(40 * static_cast<size_t>(model_->config().vocab));
    model_->forward(batch, cache, out, observer);
    return out;
  }
  static double difference(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0, all = 0;
    for (size_t i = 0; i < a.size(); i++) {
      sum += std::pow(double{a[i]} - b[i], 2);
      all += std::pow(double{b[i]}, 2);
    }
    return std::sqrt(sum / all);
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> tokens_;
};

TEST_P(Absorb, LogitsAreThoseOfTheWayBackAsAnOp) {
  const auto transforms = bases(model_->config(), 7);
  const std::vector<float> before = logits(transforms);
  model_->absorb_values(transforms);
  EXPECT_TRUE(model_->has_absorbed_values());
  // Sums in another order; where that flips the rounding of a value in the cache, a little more.
  EXPECT_LT(difference(logits(transforms), before), kSame);

  model_->absorb_values({});
  EXPECT_FALSE(model_->has_absorbed_values());
  EXPECT_EQ(logits(transforms), before) << "the file's W_o again";
}

TEST_P(Absorb, AnotherWayBackWouldShow) {
  // What the bound above can tell apart. Only the way back is another one: where the way in is changed to
  // match it, all of it is another basis, and logits are the same but for roundings. Means, and W_o itself:
  // src/model/output_basis_test.cpp.
  const auto transforms = bases(model_->config(), 7);
  const std::vector<float> right = logits(transforms);
  auto transposed = transforms, none = transforms;
  const size_t d = model_->config().head_dim;
  for (size_t layer = 0; layer < transforms.size(); layer++) {
    const std::vector<float>& decode = transforms[layer].v.decode;
    for (size_t at = 0; at < decode.size(); at++) {
      const size_t i = at / d % d, j = at % d, head = at - i * d - j;
      transposed[layer].v.decode[at] = decode[head + j * d + i];
      none[layer].v.decode[at] = i == j ? 1.0f : 0.0f;
    }
  }
  EXPECT_GT(difference(logits(transposed), right), 500 * kSame);
  EXPECT_GT(difference(logits(none), right), 500 * kSame);
}

TEST_P(Absorb, OneBasisIsReplacedByAnother) {
  const auto first = bases(model_->config(), 7), second = bases(model_->config(), 70);
  const std::vector<float> expected = logits(second);
  model_->absorb_values(first);
  model_->absorb_values(second);
  EXPECT_LT(difference(logits(second), expected), kSame);
}

TEST_P(Absorb, ACacheOfAnotherBasisIsRefused) {
  const auto transforms = bases(model_->config(), 7);
  model_->absorb_values(transforms);
  for (const std::vector<LayerTransforms>& other :
       {bases(model_->config(), 8), std::vector<LayerTransforms>{}})
    try {
      logits(other);
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::Mismatch) << e.what();
      EXPECT_NE(std::string(e.what()).find("absorbed"), std::string::npos) << e.what();
    }
  NoObserver observer;
  EXPECT_THROW(logits(transforms, &observer), Error);
}

INSTANTIATE_TEST_SUITE_P(Models, Absorb,
                         testing::Values(Case{"qwen3", "reference"}, Case{"qwen3", "cpu"},
                                         Case{"llama-linear-rope-bias", "reference"},
                                         Case{"llama-linear-rope-bias", "cpu"}),
                         [](const auto& info) {
                           std::string name = std::string(info.param.model) + "_" + info.param.device;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(AbsorbingEngine, AnswersAndRefusesWhatCannotBe) {
  const auto backend = open_device({.device = "cpu", .n_threads = 2});
  const auto model = Model::load(write_random_model({.n_layers = 2, .seed = 4}), *backend, 128);
  const auto answer = [&](const char* method, bool absorb) {
    Engine engine(*model,
                  {.cache = CacheSpec::parse(method),
                   .context = 400,
                   .n_sequences = 1,
                   .chunk_tokens = 128,
                   .absorb_values = absorb},
                  nullptr);
    return engine.generate({.prompt = random_tokens(300, model->config().vocab, 1), .max_tokens = 5}, {})
        .tokens;
  };
  const auto code_of = [&](const char* method, bool absorb) {
    try {
      answer(method, absorb);
    } catch (const Error& e) {
      return e.code();
    }
    return ErrorCode::Bug;
  };
  EXPECT_EQ(code_of("bf16", true), ErrorCode::BadArgument);
  EXPECT_EQ(code_of("naive2", true), ErrorCode::BadArgument);
  EXPECT_FALSE(model->has_absorbed_values()) << "nothing has changed";
  EXPECT_EQ(answer("quarot2", true).size(), 5u);
  EXPECT_TRUE(model->has_absorbed_values());
  EXPECT_EQ(code_of("bf16", false), ErrorCode::Mismatch);
  const EngineOptions plain{.cache = CacheSpec::parse("bf16"), .context = 400, .chunk_tokens = 128};
  EXPECT_THROW(Engine(*model, plain, nullptr), Error)
      << "said when the engine is made, not at its first step";
}

}  // namespace
}  // namespace kv2::test
