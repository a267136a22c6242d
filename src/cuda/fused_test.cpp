// SPDX-License-Identifier: Apache-2.0
// What the CUDA backend fuses against the ops it stands for, bit for bit: heads(), and inputs of linears that
// norm, SwiGLU, transform and attention leave rounded. Needs a GPU: skipped by name where there is none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "cuda/cuda_backend.h"
#include "kv2/error.h"
#include "ops/arg_max.h"
#include "ops/cases/inputs.h"
#include "ops/cases/page_world.h"
#include "ops/device_extras.h"

namespace kv2 {
namespace {

using cases::DeviceArray;
using cases::on_device;

std::unique_ptr<Backend> make_backend() {
  try {
    return make_cuda_backend({.device = 0, .precision = LinearPrecision::Bf16});
  } catch (const Error& e) {
    if (e.code() != ErrorCode::Unsupported) throw;
    return nullptr;
  }
}

struct HeadsCase {
  int n_rows, n_heads, n_kv_heads, head_dim;
  bool norm, matrices, means, adjacent;
};

/// Sequences of 1 to 3 rows in a pool of full pages, with tables on the device.
struct Pages {
  PageLayout layout;
  DeviceArray<std::byte> memory;
  DeviceArray<int32_t> table;
  std::vector<SequenceView> sequences;
  std::vector<int64_t> positions;

  Pages(Backend& backend, const HeadsCase& c)
      : layout(PageLayout::of_int2({1, c.n_heads, c.n_kv_heads, c.head_dim}, c.head_dim)),
        memory(backend, (c.n_rows + 2) * layout.full_page_bytes()),
        table(backend, 3 * (c.n_rows + 2)) {
    backend.upload(memory.data(), std::vector<std::byte>(memory.size()).data(), memory.size());
    std::vector<int32_t> slots;
    for (int row = 0; row < c.n_rows;) {
      const int n = std::min(1 + row % 3, c.n_rows - row), page = row % 3;
      const int32_t slot = static_cast<int32_t>(sequences.size());
      sequences.push_back({.first_row = row,
                           .n_rows = n,
                           .first_pos = page * kPageTokens + 7 * row % 60,
                           .full_pages = table.data() + slots.size(),
                           .packed_pages = nullptr});
      for (int i = 0; i < n; i++) positions.push_back(sequences.back().first_pos + i);
      for (int i = 0; i < 3; i++) slots.push_back(slot);
      row += n;
    }
    backend.upload(table.data(), slots.data(), slots.size() * sizeof(int32_t));
  }
  KvView view() const { return {layout, memory.data(), nullptr, {}}; }
};

void check_heads(Backend& b, const HeadsCase& c) {
  const int d = c.head_dim, n = c.n_rows, width = (c.n_heads + 2 * c.n_kv_heads) * d;
  cases::Random random(n * 1000 + d);
  const auto values = [&](size_t size, float mean, float sigma) {
    return on_device(b, random.normals(size, mean, sigma));
  };
  const std::vector<float> host = random.normals(static_cast<size_t>(n) * width, 0.3f, 1.0f);
  const auto part = [&](int first, int heads) {
    std::vector<float> out;
    for (int row = 0; row < n; row++)
      out.insert(out.end(), host.begin() + static_cast<size_t>(row) * width + first * d,
                 host.begin() + static_cast<size_t>(row) * width + (first + heads) * d);
    return on_device(b, out);
  };
  const auto qkv = on_device(b, host);
  const auto q = part(0, c.n_heads), k = part(c.n_heads, c.n_kv_heads),
             v = part(c.n_heads + c.n_kv_heads, c.n_kv_heads);
  const DeviceArray<float> q_out(b, static_cast<size_t>(n) * c.n_heads * d);
  const size_t matrix = static_cast<size_t>(c.n_kv_heads) * d * d;
  const auto q_norm = values(d, 1, 0.1f), k_norm = values(d, 1, 0.1f);
  const auto encode_k = values(matrix, 0, 0.1f), decode_k = values(matrix, 0, 0.1f),
             encode_v = values(matrix, 0, 0.1f);
  const auto mean_k = values(c.n_kv_heads * d, 0.2f, 1), mean_v = values(c.n_kv_heads * d, 0.2f, 1);
  const std::vector<float> frequencies = random.normals(d / 2, 0.5f, 0.2f);
  const RopePairing pairing = c.adjacent ? RopePairing::Adjacent : RopePairing::Halves;
  const Pages plain(b, c), fused(b, c);

  if (c.norm) {
    b.rms_norm({q.data(), q_norm.data(), q.data(), n * c.n_heads, d, 1e-6f});
    b.rms_norm({k.data(), k_norm.data(), k.data(), n * c.n_kv_heads, d, 1e-6f});
  }
  b.rope({q.data(), plain.positions.data(), frequencies.data(), n, c.n_heads, d, pairing});
  b.rope({k.data(), plain.positions.data(), frequencies.data(), n, c.n_kv_heads, d, pairing});
  const auto transform = [&](const DeviceArray<float>& x, const DeviceArray<float>& m, const float* mean,
                             int n_heads, bool transpose) {
    if (c.matrices)
      b.transform({x.data(), x.data(), m.data(), mean, nullptr, n, n_heads, c.n_kv_heads, d, transpose});
  };
  transform(q, decode_k, nullptr, c.n_heads, true);
  transform(k, encode_k, c.means ? mean_k.data() : nullptr, c.n_kv_heads, false);
  transform(v, encode_v, c.means ? mean_v.data() : nullptr, c.n_kv_heads, false);
  b.append({0, k.data(), v.data(), plain.view(), plain.sequences});

  const auto side = [&](const DeviceArray<float>* norm, const DeviceArray<float>& m,
                        const DeviceArray<float>* mean) {
    return HeadsParams::Side{c.norm && norm ? norm->data() : nullptr, c.matrices ? m.data() : nullptr,
                             c.matrices && c.means && mean ? mean->data() : nullptr};
  };
  ASSERT_TRUE(fused_heads(b, {.layer = 0,
                              .qkv = qkv.data(),
                              .q_out = q_out.data(),
                              .q = side(&q_norm, decode_k, nullptr),
                              .k = side(&k_norm, encode_k, &mean_k),
                              .v = side(nullptr, encode_v, &mean_v),
                              .epsilon = 1e-6f,
                              .inv_frequency = frequencies.data(),
                              .pairing = pairing,
                              .kv = fused.view(),
                              .sequences = fused.sequences,
                              .n_rows = n}));
  EXPECT_EQ(q_out.download(), q.download()) << n << " rows, head_dim " << d;
  EXPECT_TRUE(fused.memory.download() == plain.memory.download()) << n << " rows, head_dim " << d;
}

TEST(CudaFused, HeadsAreTheOpsTheyStandFor) {
  const auto backend = make_backend();
  if (!backend) GTEST_SKIP() << "no GPU";
  for (const int n_rows : {1, 3, 8, 13, 100})
    for (const HeadsCase& c : {HeadsCase{n_rows, 32, 8, 128, true, true, true, false},
                               {n_rows, 8, 2, 128, true, false, false, false},
                               {n_rows, 9, 3, 64, false, true, false, true},
                               {n_rows, 9, 3, 64, false, false, false, true},
                               {n_rows, 4, 4, 256, true, true, true, false},
                               {n_rows, 10, 1, 96, false, true, true, false}})
      check_heads(*backend, c);
}

TEST(CudaFused, BestTokensAreArgMax) {
  const auto backend = make_backend();
  if (!backend) GTEST_SKIP() << "no GPU";
  for (const int n_rows : {1, 3, 20}) {
    constexpr int kWidth = 5003;
    cases::Random random(n_rows);
    std::vector<float> rows = random.normals(static_cast<size_t>(n_rows) * kWidth, -9.0f, 1.0f);
    rows[7] = rows[4000] = 50, rows[8] = NAN;
    if (n_rows > 1) std::fill_n(rows.begin() + kWidth, kWidth, -INFINITY);
    const auto device = on_device(*backend, rows);
    std::vector<int32_t> best(n_rows);
    arg_max(*backend, device.data(), n_rows, kWidth, best.data());
    for (int i = 0; i < n_rows; i++)
      EXPECT_EQ(best[i], arg_max({rows.data() + static_cast<size_t>(i) * kWidth, kWidth})) << "row " << i;
  }
}

/// Weights of a seed.
std::unique_ptr<Linear> make_linear(Backend& b, int n_in, int n_out, cases::Random& random) {
  const std::vector<float> weights = random.normals(static_cast<size_t>(n_in) * n_out, 0.01f, 0.05f);
  return b.make_linear({.n_in = n_in,
                        .n_out = n_out,
                        .fill =
                            [&](int row0, int n, float* out) {
                              std::copy_n(weights.data() + static_cast<size_t>(row0) * n_in,
                                          static_cast<size_t>(n) * n_in, out);
                            },
                        .bias = {},
                        .coded = {}});
}

/// A linear right after the op that makes its input against one that finds nothing left rounded.
TEST(CudaFused, InputsLeftRoundedAreTheInputs) {
  const auto backend = make_backend();
  if (!backend) GTEST_SKIP() << "no GPU";
  Backend& b = *backend;
  for (const int n_in : {512, 576, 264, 300})
    for (const int n_rows : {1, 2, 8, 9, 16, 17, 65, 200}) {
      cases::Random random(n_in + n_rows);
      const int n_out = 320;
      const auto linear = make_linear(b, n_in, n_out, random);
      const size_t size = static_cast<size_t>(n_rows) * n_in;
      const auto x = on_device(b, random.normals(2 * size, 0.2f, 1.0f)),
                 w = on_device(b, random.normals(n_in, 1, 0.1f));
      const DeviceArray<float> y(b, size), copy(b, size), left(b, static_cast<size_t>(n_rows) * n_out),
          alone(b, static_cast<size_t>(n_rows) * n_out);
      for (const bool swiglu : {false, true}) {
        const auto make = [&] {
          if (swiglu)
            b.swiglu({x.data(), x.data() + n_in, y.data(), n_rows, n_in, 2 * static_cast<size_t>(n_in)});
          else
            b.rms_norm({x.data(), w.data(), y.data(), n_rows, n_in, 1e-5f});
        };
        make();
        b.linear(*linear, {y.data(), left.data(), n_rows});
        b.copy(copy.data(), y.data(), size * sizeof(float));
        b.linear(*linear, {copy.data(), alone.data(), n_rows});
        EXPECT_EQ(left.download(), alone.download()) << n_rows << " rows of " << n_in;
        make();  // what is left is of y, not of copy
        b.linear(*linear, {copy.data(), left.data(), n_rows});
        EXPECT_EQ(left.download(), alone.download());
      }
    }
}

/// The same after attention of one query each, which leaves them when it is told, and of chunks, which do
/// not; sequences of one run of pages and of several, whose last block merges them.
void check_attention_before_linear(Backend& b, const cases::WorldSpec& spec, int n_rows) {
  const KvShape& shape = spec.shape;
  const int n_sequences = static_cast<int>(spec.n_tokens.size()), width = shape.n_heads * shape.head_dim,
            n = n_rows * n_sequences, n_out = 320;
  const auto world = std::make_shared<const cases::PageWorld>(spec);
  const cases::DevicePages pages(b, world);
  pages.fill_full();
  pages.fill_packed();
  std::vector<cases::Segment> segments;
  for (int i = 0; i < n_sequences; i++) segments.push_back({i, spec.n_tokens[i] - 10 - 20 * (i % 4), n_rows});
  cases::Views views = world->views(segments);
  std::vector<DeviceArray<int32_t>> tables;  // the device reads them
  for (const std::vector<int32_t>& table : views.tables)
    tables.emplace_back(b, std::span<const int32_t>(table));
  for (size_t i = 0; i < views.views.size(); i++) {
    views.views[i].full_pages = tables[2 * i].data();
    views.views[i].packed_pages = tables[2 * i + 1].data();
  }
  cases::Random random(width + n);
  const auto linear = make_linear(b, width, n_out, random);
  const size_t size = static_cast<size_t>(n) * width;
  const auto q = on_device(b, random.normals(size, 0.2f, 1.0f));
  const DeviceArray<float> y(b, size), copy(b, size), left(b, size_t{320} * n), alone(b, size_t{320} * n);
  b.attend({0, q.data(), y.data(), pages.view(), views.views, 0.1f, 0, true});
  b.linear(*linear, {y.data(), left.data(), n});
  b.copy(copy.data(), y.data(), size * sizeof(float));
  b.linear(*linear, {copy.data(), alone.data(), n});
  EXPECT_EQ(left.download(), alone.download())
      << n << " rows of " << shape.n_heads << " heads over " << shape.n_kv_heads << " of " << shape.head_dim
      << ", group " << spec.group << ", " << spec.n_tokens[0] << " tokens";
}

TEST(CudaFused, AttentionLeavesInputsRounded) {
  const auto backend = make_backend();
  if (!backend) GTEST_SKIP() << "no GPU";
  for (const int d : {64, 128})
    for (const int group : {0, d})  // full pages alone; packed ones, too
      for (const int n_sequences : {1, 5, 17})
        for (const int n_rows : {1, 3})
          check_attention_before_linear(*backend,
                                        {.shape = {1, 8, 2, d},
                                         .group = group,
                                         .rule = {1, 1, group > 0},
                                         .n_tokens = std::vector<int64_t>(n_sequences, 400)},
                                        n_rows);
  for (const int n_heads : {8, 32}) {  // 16 queries of a KV head are two tiles
    const cases::WorldSpec longer{
        .shape = {1, n_heads, 2, 64}, .group = 64, .rule = {1, 4, true}, .n_tokens = {2300, 5001, 700}};
    check_attention_before_linear(*backend, longer, 1);
    cases::WorldSpec channels = longer;
    channels.k = {.codec = CodecId::Channel, .bits = 2, .group = 32, .norm = TokenNorm::AllHeads};
    channels.v = {.codec = CodecId::Affine, .bits = 2, .group = 32};
    check_attention_before_linear(*backend, channels, 1);
  }
}

/// The form for few rows against the one for many, which works in place; and what it leaves for a linear.
TEST(CudaFused, TransformsOfFewRowsAreTransforms) {
  const auto backend = make_backend();
  if (!backend) GTEST_SKIP() << "no GPU";
  Backend& b = *backend;
  for (const int d : {64, 96, 128, 256})
    for (const int q_per_kv : {1, 3, 4})
      for (const int n_rows : {1, 3, 16, 17, 53, 64, 65}) {
        const int n_kv_heads = 2, n_heads = n_kv_heads * q_per_kv, width = n_heads * d, n_out = 320;
        cases::Random random(d + 7 * n_rows + q_per_kv);
        const size_t size = static_cast<size_t>(n_rows) * width;
        const auto values = [&](size_t n, float mean, float sigma) {
          return on_device(b, random.normals(n, mean, sigma));
        };
        const auto x = values(size, 0.3f, 1),
                   matrix = values(static_cast<size_t>(n_kv_heads) * d * d, 0, 0.1f),
                   mean = values(static_cast<size_t>(n_kv_heads) * d, 0.2f, 1);
        const auto linear = make_linear(b, width, n_out, random);
        const DeviceArray<float> few(b, size), copy(b, size), left(b, size_t{320} * n_rows),
            alone(b, size_t{320} * n_rows);
        for (const bool transpose : {false, true}) {
          const auto transform = [&](const float* in, float* out) {
            b.transform({in, out, matrix.data(), transpose ? mean.data() : nullptr,
                         transpose ? nullptr : mean.data(), n_rows, n_heads, n_kv_heads, d, transpose});
          };
          transform(x.data(), few.data());
          b.linear(*linear, {few.data(), left.data(), n_rows});
          b.copy(copy.data(), few.data(), size * sizeof(float));
          b.linear(*linear, {copy.data(), alone.data(), n_rows});
          EXPECT_EQ(left.download(), alone.download()) << n_rows << " rows, head_dim " << d;
          b.copy(copy.data(), x.data(), size * sizeof(float));
          transform(copy.data(), copy.data());
          EXPECT_EQ(few.download(), copy.download()) << n_rows << " rows, head_dim " << d;
        }
      }
}

}  // namespace
}  // namespace kv2
