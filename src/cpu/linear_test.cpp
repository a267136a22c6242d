// SPDX-License-Identifier: Apache-2.0
// The property everything else stands on: a row of a linear has the same bits alone, in any batch, in any
// chunking and on any number of threads. At the shapes of the real models, in both precisions.
#include "cpu/linear.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <optional>
#include <random>
#include <vector>

#include "base/float16.h"
#include "cpu/cpu_backend.h"
#include "kv2/error.h"

namespace kv2::cpu {
namespace {

std::vector<float> normals(size_t n, float mean, float sigma, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(mean, sigma);
  std::vector<float> x(n);
  for (float& v : x) v = normal(generator);
  return x;
}

struct Weights {
  int n_in, n_out;
  std::vector<float> values, bias;
  Weights(int n_in, int n_out, bool with_bias)
      : n_in(n_in),
        n_out(n_out),
        values(normals(static_cast<size_t>(n_in) * n_out, 0.02f, 0.1f, n_in + n_out)) {
    if (with_bias) bias = normals(static_cast<size_t>(n_out), 0.5f, 1.f, 3);
  }
  LinearSource source() const {
    return {n_in, n_out,
            [this](int row, int n, float* out) {
              std::memcpy(out, values.data() + static_cast<size_t>(row) * n_in,
                          sizeof(float) * n_in * static_cast<size_t>(n));
            },
            bias};
  }
};

/// nullopt where oneDNN has no such matmul for this machine; the reason is printed.
std::optional<LinearEngine> engine(ThreadTeam& team, LinearPrecision precision) {
  try {
    return std::optional<LinearEngine>(std::in_place, team, precision, HugePages::On);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::Unsupported);
    EXPECT_EQ(precision, LinearPrecision::Bf16);
    std::printf("[   note   ] %s\n", e.what());
    return std::nullopt;
  }
}

class LinearRows : public testing::TestWithParam<LinearPrecision> {};

TEST_P(LinearRows, HaveTheSameBitsInAnyBatch) {
  ThreadTeam one(1), three(3);
  auto alone = engine(one, GetParam()), shared = engine(three, GetParam());
  if (!alone) return;
  for (const auto& [n_in, n_out] : {std::pair{576, 192},
                                    {576, 576},
                                    {576, 1536},
                                    {1536, 576},
                                    {512, 1024},
                                    {100, 70},
                                    {33, 1153},
                                    {8, 1}}) {
    const Weights weights(n_in, n_out, n_out % 2 == 1);
    const auto a = alone->pack(weights.source()), b = shared->pack(weights.source());
    const int n_rows = 150;
    const auto in = normals(static_cast<size_t>(n_rows) * n_in, 0.3f, 1.f, 1);
    std::vector<float> whole(static_cast<size_t>(n_rows) * n_out);
    alone->multiply(*a, {in.data(), whole.data(), n_rows});
    for (const int chunk : {1, 2, 3, 5, 15, 16, 17, 49, 63, 64, 65, 127, 150}) {
      std::vector<float> parts(whole.size(), -7.f);
      for (int row = 0; row < n_rows; row += chunk) {
        const LinearParams p{in.data() + static_cast<size_t>(row) * n_in,
                             parts.data() + static_cast<size_t>(row) * n_out, std::min(chunk, n_rows - row)};
        (row % 2 ? alone : shared)->multiply(row % 2 ? *a : *b, p);
      }
      ASSERT_EQ(std::memcmp(parts.data(), whole.data(), whole.size() * sizeof(float)), 0)
          << n_in << " to " << n_out << " in chunks of " << chunk << ", " << alone->describe();
    }
  }
}

TEST_P(LinearRows, MatchDoublePrecision) {
  ThreadTeam team(2);
  auto linears = engine(team, GetParam());
  if (!linears) return;
  const auto rounded = [&](float x) { return linears->uses_bf16() ? to_float(to_bf16(x)) : x; };
  for (const auto& [n_in, n_out] : {std::pair{576, 192}, {37, 200}, {1536, 1100}}) {
    const Weights weights(n_in, n_out, true);
    const auto packed = linears->pack(weights.source());
    EXPECT_EQ(packed->n_in(), n_in);
    EXPECT_EQ(packed->n_out(), n_out);
    EXPECT_GE(packed->bytes(), static_cast<size_t>(n_in) * n_out * (linears->uses_bf16() ? 2 : 4));
    const int n_rows = 21;
    const auto in = normals(static_cast<size_t>(n_rows) * n_in, 0.3f, 1.f, 9);
    auto out = normals(static_cast<size_t>(n_rows) * n_out, -0.5f, 1.f, 10);
    const auto before = out;
    linears->multiply(*packed, {in.data(), out.data(), n_rows, Accumulate::Yes});
    for (int r = 0; r < n_rows; r++)
      for (int o = 0; o < n_out; o++) {
        double want = static_cast<double>(weights.bias[o]) + before[static_cast<size_t>(r) * n_out + o],
               size = std::abs(want);
        for (int i = 0; i < n_in; i++) {
          const double term = static_cast<double>(rounded(in[static_cast<size_t>(r) * n_in + i])) *
                              rounded(weights.values[static_cast<size_t>(o) * n_in + i]);
          want += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(out[static_cast<size_t>(r) * n_out + o], want, 1e-6 * size)
            << n_in << " to " << n_out << " row " << r;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LinearRows, testing::Values(LinearPrecision::F32, LinearPrecision::Bf16),
                         [](const auto& info) {
                           return info.param == LinearPrecision::F32 ? "f32" : "bf16";
                         });

// The output layer of SmolLM2: 384 tiles. One row alone and among others, all columns.
TEST(LinearEngine, OutputLayerOfARealModel) {
  ThreadTeam team(2);
  LinearEngine linears(team, LinearPrecision::Auto, HugePages::On);
  const Weights weights(576, 49152, false);
  const auto packed = linears.pack(weights.source());
  const auto in = normals(17 * 576, 0.3f, 1.f, 2);
  std::vector<float> together(17 * size_t{49152}), alone(49152);
  linears.multiply(*packed, {in.data(), together.data(), 17});
  for (const int row : {0, 3, 16}) {
    linears.multiply(*packed, {in.data() + row * 576, alone.data(), 1});
    EXPECT_EQ(
        std::memcmp(alone.data(), together.data() + static_cast<size_t>(row) * 49152, 49152 * sizeof(float)),
        0);
  }
}

TEST(LinearEngine, NeverUsesOneDnnsReferenceCodeSilently) {
  ThreadTeam team(1);
  for (const auto precision : {LinearPrecision::Auto, LinearPrecision::F32}) {
    LinearEngine linears(team, precision, HugePages::On);
    const Weights weights(576, 192, false);
    (void)linears.pack(weights.source());
#if defined(__x86_64__)
    EXPECT_EQ(linears.describe().find("ref"), std::string::npos) << linears.describe();
#endif
    EXPECT_NE(linears.describe().find("oneDNN"), std::string::npos);
  }
}

// oneDNN on OpenMP would start a team of its own in each of our threads.
TEST(LinearEngine, StartsNoThreadsOfItsOwn) {
  const auto n_threads = [] {
    int n = 0;
    for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task")) n++;
    return n;
  };
  ThreadTeam team(3);
  LinearEngine linears(team, LinearPrecision::Auto, HugePages::On);
  const int before = n_threads();
  const Weights weights(512, 1024, false);
  const auto packed = linears.pack(weights.source());
  const auto in = normals(512 * 512, 0.f, 1.f, 2);
  std::vector<float> out(512 * 1024);
  linears.multiply(*packed, {in.data(), out.data(), 512});
  EXPECT_EQ(n_threads(), before);
}

}  // namespace
}  // namespace kv2::cpu
