// SPDX-License-Identifier: Apache-2.0
// Block decoding against the Python package gguf (testdata/dequantize.safetensors, made by
// tools/make_dequantize_golden.py), bit for bit.
#include "formats/dequantize.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <sstream>

#include "formats/safetensors.h"
#include "kv2/error.h"

namespace kv2 {
namespace {

std::unique_ptr<SafetensorsFile> golden() {
  return SafetensorsFile::open(KV2_SOURCE_DIR "/src/formats/testdata/dequantize.safetensors");
}

std::vector<float> floats(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo* t = file.find(name);
  if (!t) return {};
  std::vector<float> out(static_cast<size_t>(t->n_elements()));
  std::memcpy(out.data(), file.raw(*t).data(), out.size() * sizeof(float));
  return out;
}

TEST(Dequantize, EveryTypeEqualsTheReferenceBitForBit) {
  const auto file = golden();
  for (const char* name : {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K",
                           "Q4_K", "Q5_K", "Q6_K"}) {
    SCOPED_TRACE(name);
    const BlockType* type = find_block_type(name);
    ASSERT_TRUE(type && type->decode);
    const TensorInfo* blocks = file->find(std::string(name) + ".blocks");
    const std::vector<float> expected = floats(*file, std::string(name) + ".values");
    ASSERT_TRUE(blocks);
    ASSERT_GT(expected.size(), 64u);
    ASSERT_EQ(blocks->bytes / type->block_bytes * type->block_elements, expected.size());
    std::vector<float> found(expected.size(), 1e30f);
    decode_elements(*type, file->raw(*blocks), 0, static_cast<int64_t>(found.size()), found.data());
    for (size_t i = 0; i < found.size(); i++) {
      uint32_t a, b;
      std::memcpy(&a, &found[i], 4);
      std::memcpy(&b, &expected[i], 4);
      ASSERT_EQ(a, b) << "element " << i << ": " << found[i] << ", expected " << expected[i];
    }
  }
}

TEST(Dequantize, AnyRangeIsThatPartOfTheWhole) {
  const auto file = golden();
  std::mt19937 rng(7);
  for (const char* name : {"F16", "Q5_1", "Q3_K", "Q6_K"}) {
    SCOPED_TRACE(name);
    const BlockType* type = find_block_type(name);
    const auto bytes = file->raw(*file->find(std::string(name) + ".blocks"));
    const std::vector<float> all = floats(*file, std::string(name) + ".values");
    const int64_t n_all = static_cast<int64_t>(all.size());
    for (int i = 0; i < 200; i++) {
      const int64_t first = static_cast<int64_t>(rng() % all.size()),
                    n = static_cast<int64_t>(rng()) % (n_all - first + 1);
      std::vector<float> found(static_cast<size_t>(n) + 1, 42.0f);
      decode_elements(*type, bytes, first, n, found.data());
      ASSERT_EQ(std::memcmp(found.data(), all.data() + first, static_cast<size_t>(n) * 4), 0)
          << first << " + " << n;
      ASSERT_EQ(found.back(), 42.0f) << "written past the end";
    }
  }
}

TEST(Dequantize, RangesOutsideAreABug) {
  const std::vector<std::byte> block(34);
  float out[64];
  const BlockType& type = *find_block_type("Q8_0");
  EXPECT_THROW(decode_elements(type, block, 0, 33, out), Error);
  EXPECT_THROW(decode_elements(type, block, -1, 1, out), Error);
  EXPECT_THROW(decode_elements(type, std::span(block).first(33), 0, 1, out), Error);
  EXPECT_THROW(decode_elements(*find_block_type("IQ4_NL"), block, 0, 1, out), Error);
}

TEST(Dequantize, IdsAndSizesEqualTheReference) {
  const auto file = golden();
  ASSERT_GT(file->metadata().size(), 30u);
  for (const auto& [name, text] : file->metadata()) {
    std::istringstream in(text);
    uint32_t id;
    int64_t elements;
    size_t bytes;
    in >> id >> elements >> bytes;
    const BlockType* type = find_block_type(name);
    ASSERT_TRUE(type) << name;
    EXPECT_EQ(type->gguf_id, id) << name;
    EXPECT_EQ(type->block_elements, elements) << name;
    EXPECT_EQ(type->block_bytes, bytes) << name;
    EXPECT_EQ(find_block_type(id), type) << name;
  }
  EXPECT_EQ(find_block_type(4u), nullptr);  // Q4_2, removed long ago
  EXPECT_EQ(decodable_types(), "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K");
}

}  // namespace
}  // namespace kv2
