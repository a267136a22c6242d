// SPDX-License-Identifier: Apache-2.0
// Codes, scale and offset of random blocks of every coded type give the floats of dequantize.h.
#include "formats/weight_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "formats/dequantize.h"

namespace kv2 {
namespace {

/// A matrix of random blocks in memory.
class RandomFile final : public TensorFile {
 public:
  RandomFile(const std::string& type, int64_t n_rows, int64_t blocks) : type_(find_block_type(type)) {
    bytes_.resize(static_cast<size_t>(n_rows * blocks) * type_->block_bytes);
    std::mt19937 random(7);
    // fp16 fields must be finite: bit 14 of every 16 clear keeps exponents below 2.
    for (auto& b : bytes_) b = static_cast<std::byte>(random() & 0xbf);
    tensors_.push_back({"w", type, {n_rows, blocks * type_->block_elements}, bytes_.size()});
  }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view) const override { return &tensors_[0]; }
  std::span<const std::byte> raw(const TensorInfo&) const override { return bytes_; }
  void read_rows(const TensorInfo& t, int64_t row0, int64_t n, float* out) const override {
    decode_elements(*type_, bytes_, row0 * t.shape[1], n * t.shape[1], out);
  }
  std::string kind() const override { return "random"; }

 private:
  const BlockType* type_;
  std::vector<std::byte> bytes_;
  std::vector<TensorInfo> tensors_;
};

TEST(WeightCodes, GiveTheFloatsOfTheDecoder) {
  for (const char* type : {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}) {
    const RandomFile file(type, 5, 3);
    const TensorInfo& t = file.tensors()[0];
    const auto format = code_format(type);
    ASSERT_TRUE(format) << type;
    const int64_t width = t.shape[1], parts = width / format->block, row0 = 1, n = 3;
    std::vector<float> want(n * width), scale(n * parts), offset(n * parts);
    std::vector<uint8_t> codes(n * width);
    file.read_rows(t, row0, n, want.data());
    read_codes(file, t, row0, n, codes.data(), scale.data(), offset.data());
    for (int64_t i = 0; i < n * width; i++) {
      ASSERT_LT(codes[i], 1 << format->bits) << type;
      const int64_t part = i / format->block;
      float x = scale[part] * static_cast<float>(codes[i] - format->zero);
      if (format->has_offset) x += offset[part];
      ASSERT_EQ(x, want[i]) << type << " element " << i;
    }
  }
}

TEST(WeightCodes, FloatsHaveNone) {
  for (const char* type : {"F32", "F16", "BF16", "no type"}) EXPECT_FALSE(code_format(type)) << type;
}

}  // namespace
}  // namespace kv2
