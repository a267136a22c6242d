// SPDX-License-Identifier: Apache-2.0
#include "model/random_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kv2/error.h"
#include "model/model.h"
#include "model/weights.h"

namespace kv2 {
namespace {

TEST(RandomFile, IsACompleteModelOfItsShape) {
  const auto file = open_model_file("random:qwen3-0.6b");
  const ModelConfig c = read_config(*file);
  EXPECT_EQ(c.n_layers, 28);
  EXPECT_EQ(c.kv_shape().q_per_kv(), 2);
  EXPECT_NO_THROW(check_tensors(*file, c));
}

TEST(RandomFile, SameNameSameWeightsWithTheVarianceOfALinear) {
  const auto a = RandomFile::open("random:qwen3-0.6b"), b = RandomFile::open("random:qwen3-0.6b");
  const TensorInfo& t = *a->find("model.layers.3.mlp.down_proj.weight");
  const auto width = static_cast<size_t>(t.shape[1]);
  std::vector<float> rows(4 * width), one(width);
  a->read_rows(t, 10, 4, rows.data());
  b->read_rows(*b->find(t.name), 12, 1, one.data());
  EXPECT_EQ(std::vector<float>(rows.begin() + 2 * width, rows.begin() + 3 * width), one);
  double square = 0;
  for (const float x : rows) square += double{x} * x;
  EXPECT_NEAR(square / static_cast<double>(rows.size()) * static_cast<double>(width), 1.0, 0.1);
  std::vector<float> norm(1024);
  const TensorInfo& vector = *a->find("model.norm.weight");
  a->read_rows(vector, 0, 1024, norm.data());
  EXPECT_EQ(norm, std::vector<float>(1024, 1.0f));
}

TEST(RandomFile, UnknownShapesAreRefusedWithTheKnownOnes) {
  EXPECT_EQ(RandomFile::open("/models/random.gguf"), nullptr);
  try {
    RandomFile::open("random:gpt-5");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::BadArgument);
    EXPECT_NE(std::string(e.what()).find("qwen3-8b"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace kv2
