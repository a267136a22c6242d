// SPDX-License-Identifier: Apache-2.0
// Byte maps of docs/page-format.md: the table of bits per element, offsets that tile a page without gap or
// overlap, and where each token's bytes lie.
#include "quant/page_layout.h"

#include <gtest/gtest.h>

#include <random>

#include "kv2/error.h"
#include "quant/int2/int2.h"

namespace kv2 {
namespace {

CacheSpec int2_spec(int group) {
  const SideFormat side{.codec = CodecId::Affine, .bits = 2, .group = group};
  return {.method = {.name = "naive2", .k = side, .v = side}};
}

TEST(PageLayout, BitsPerElementAreTheDocumentedOnes) {
  struct Case {
    int head_dim, group;
    double bits;
    size_t bytes;
  };
  const Case cases[] = {{64, 0, 2.5, 2560},           {80, 0, 2.4, 3072},
                        {96, 0, 2 + 32.0 / 96, 3584}, {112, 0, 2 + 32.0 / 112, 4096},
                        {128, 0, 2.25, 4608},         {192, 0, 2 + 32.0 / 96, 7168},
                        {256, 0, 2.25, 9216},         {128, 64, 2.5, 5120},
                        {128, 32, 3.0, 6144}};
  for (const Case& c : cases) {
    const KvShape shape{.n_layers = 3, .n_heads = 8, .n_kv_heads = 2, .head_dim = c.head_dim};
    const PageLayout layout = PageLayout::of(int2_spec(c.group), shape);
    EXPECT_NEAR(layout.history_bits(), c.bits, 1e-12) << c.head_dim;
    EXPECT_EQ(layout.packed_head_bytes(0), c.bytes) << c.head_dim;
    EXPECT_EQ(layout.packed_page_bytes(), 6 * c.bytes);
    EXPECT_EQ(layout.full_page_bytes(), static_cast<size_t>(6) * 2 * 2 * kPageTokens * c.head_dim);
    EXPECT_EQ(layout.page_elements(), static_cast<size_t>(6) * 2 * kPageTokens * c.head_dim);
  }
  const PageLayout bf16 = PageLayout::of({}, {.n_layers = 3, .n_heads = 8, .n_kv_heads = 2, .head_dim = 66});
  EXPECT_EQ(bf16.history_bits(), 16.0);
  EXPECT_EQ(bf16.packed_page_bytes(), 0u);
}

TEST(PageLayout, HeadPagesTileThePage) {
  const PageLayout layout =
      PageLayout::of(int2_spec(32), {.n_layers = 3, .n_heads = 8, .n_kv_heads = 4, .head_dim = 96});
  size_t full = 0, packed = 0;
  for (int layer = 0; layer < 3; ++layer) {
    for (int head = 0; head < 4; ++head) {
      EXPECT_EQ(layout.full_offset(layer, head), full);
      EXPECT_EQ(layout.packed_offset(layer, head), packed);
      full += layout.full_head_bytes();
      packed += layout.packed_head_bytes(0);
    }
  }
  EXPECT_EQ(full, layout.full_page_bytes());
  EXPECT_EQ(packed, layout.packed_page_bytes());
  const Int2Layout head{96, 32};
  EXPECT_EQ(head.k_codes(), 0u);
  EXPECT_EQ(head.v_codes(), head.codes_bytes());
  EXPECT_EQ(head.k_params(), 2 * head.codes_bytes());
  EXPECT_EQ(head.v_params() + head.params_bytes(), head.bytes());
  EXPECT_EQ(head.n_groups(), 3);
}

// Channel 4i+j of token t lies in bits 2j of byte t·d/4 + i; scale and offset of group g are halves 2(t·G+g),
// +1.
TEST(PageLayout, CanonicalBytesLieWhereTheMapSays) {
  const int d = 80, group = 40, n_groups = 2;
  std::mt19937 rng(6);
  std::normal_distribution<float> normal(-0.3f, 1.0f);
  std::vector<bf16> rows(kPageTokens * d);
  for (bf16& x : rows) x = to_bf16(normal(rng));
  std::vector<uint8_t> packed(kPageTokens * d / 4), codes(d);
  std::vector<fp16> params(kPageTokens * n_groups * 2), scale(n_groups), offset(n_groups);
  const Coder coder{.group = group, .clip_index = clip_index(0.9, d)};
  int2::encode_rows(rows.data(), d, d, coder, packed.data(), params.data());
  for (int t = 0; t < kPageTokens; ++t) {
    int2::encode_vector(rows.data() + t * d, d, coder, codes.data(), scale.data(), offset.data());
    for (int c = 0; c < d; ++c) ASSERT_EQ((packed[t * d / 4 + c / 4] >> (2 * (c % 4))) & 3, codes[c]);
    for (int g = 0; g < n_groups; ++g) {
      ASSERT_EQ(params[2 * (t * n_groups + g)].bits, scale[g].bits);
      ASSERT_EQ(params[2 * (t * n_groups + g) + 1].bits, offset[g].bits);
    }
  }
}

TEST(PageLayout, DefaultGroups) {
  const int expected[][2] = {{64, 64},   {80, 80},   {128, 128}, {160, 80}, {192, 96},
                             {256, 128}, {512, 128}, {66, 0},    {0, 0},    {-8, 0}};
  for (const auto& [head_dim, group] : expected) EXPECT_EQ(default_group(head_dim), group) << head_dim;
}

TEST(PageLayout, RefusesWhatDoesNotFit) {
  const KvShape good{.n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .head_dim = 64};
  EXPECT_NO_THROW(PageLayout::of(int2_spec(16), good));
  EXPECT_THROW(PageLayout::of(int2_spec(48), good), Error);
  EXPECT_THROW(PageLayout::of(int2_spec(2), good), Error);
  EXPECT_THROW(PageLayout::of(int2_spec(0), {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 66}),
               Error);
  EXPECT_THROW(PageLayout::of(int2_spec(0), {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 1024}),
               Error);
  EXPECT_THROW(PageLayout::of({}, {}), Error);
}

}  // namespace
}  // namespace kv2
