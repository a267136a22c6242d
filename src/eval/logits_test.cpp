// SPDX-License-Identifier: Apache-2.0
// write_logits against a walk of single tokens.
#include "eval/logits.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/file.h"
#include "calibrate/sequence_walk.h"
#include "calibrate/tiny_model.h"
#include "kv2/error.h"

namespace kv2 {
namespace {

using testing::kTinyVocab;
using testing::random_tokens;
using testing::TinyModel;

TEST(Logits, AreThoseOfSingleTokens) {
  TinyModel model(64);
  const std::vector<int32_t> tokens = random_tokens(259, 4);
  CacheSpec spec = CacheSpec::parse("quarot2");
  spec.sink_tokens = 0;
  spec.recent_tokens = 64;
  const std::string path = model.path("logits.npy");
  write_logits(*model, spec, nullptr, tokens, path);
  const std::string bytes = read_file(path, size_t{1} << 26);
  const size_t values = tokens.size() * kTinyVocab;
  ASSERT_EQ(bytes.size() % 64, values * 4 % 64);
  ASSERT_GT(bytes.size(), values * 4);
  std::vector<float> got(values), row(kTinyVocab);
  std::memcpy(got.data(), bytes.data() + bytes.size() - values * 4, values * 4);
  EXPECT_NE(bytes.find("'shape': (259, 61)"), std::string::npos);
  SequenceWalk walk(*model, spec, nullptr, 259, 1);
  walk.restart(0);
  for (size_t i = 0; i < tokens.size(); i++) {
    walk.advance(std::span(tokens).subspan(i, 1), row, nullptr);
    for (int t = 0; t < kTinyVocab; t++) ASSERT_NEAR(got[i * kTinyVocab + t], row[t], 1e-4) << i;
  }
  EXPECT_THROW(write_logits(*model, spec, nullptr, {}, path), Error);
  EXPECT_THROW(write_logits(*model, spec, nullptr, random_tokens(testing::kTinyContext + 1, 1), path), Error);
}

}  // namespace
}  // namespace kv2
