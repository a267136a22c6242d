// SPDX-License-Identifier: Apache-2.0
// The attention kernel by itself: a row's bits do not depend on the tile, the way tokens become visible, the
// SIMD target or values it must not read; and the softmax is right against double precision. Whole attention:
// op_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cpu/attend_kernel.h"
#include "cpu/scratch.h"
#include "cpu/test_targets.h"

namespace kv2::cpu {
namespace {

struct Inputs {
  int d, n_rows, n_pages;
  std::vector<float> q, k, v;  // q [n_rows, d], k [n_pages][d][64], v [n_pages][64][d]
  Inputs(int d, int n_rows, int n_pages) : d(d), n_rows(n_rows), n_pages(n_pages) {
    std::mt19937 generator(d * 100 + n_rows);
    std::normal_distribution<float> normal(0.2f, 1.f);
    for (auto [x, n] : {std::pair{&q, n_rows * d}, {&k, n_pages * 64 * d}, {&v, n_pages * 64 * d}}) {
      x->resize(static_cast<size_t>(n));
      for (float& f : *x) f = normal(generator);
    }
  }
  const float* page_k(int p) const { return k.data() + static_cast<size_t>(p) * 64 * d; }
  const float* page_v(int p) const { return v.data() + static_cast<size_t>(p) * 64 * d; }
};

/// Rows [first, first + n) over all pages, in the last one `visible` tokens for row `first`, and
/// rows_per_query rows per further token. Partials of runs of run_pages are merged.
std::vector<float> attend(const Inputs& in, int first, int n, int visible, int rows_per_query, int run_pages,
                          float cap) {
  AlignedBuffer a(Partial::floats(n, in.d) * sizeof(float)), b(a.bytes());
  const Partial total = Partial::at(a.as<float>(), n, in.d), part = Partial::at(b.as<float>(), n, in.d);
  std::vector<float> weights(static_cast<size_t>(n) * 64);
  const TileView tile{in.q.data() + static_cast<size_t>(first) * in.d, weights.data(), n, in.d, 0.3f, cap};
  for (int p = 0; p < in.n_pages; p++) {
    const Partial& to = p < run_pages ? total : part;
    const PageView page{p + 1 == in.n_pages ? visible : 0, rows_per_query, p % run_pages == 0};
    attend_keys(tile, page, in.page_k(p), to);
    attend_values(tile, page, in.page_v(p), to);
    if (p >= run_pages && (p % run_pages == run_pages - 1 || p + 1 == in.n_pages))
      merge(total, part, n, in.d);
  }
  std::vector<float> out(static_cast<size_t>(n) * in.d);
  for (int r = 0; r < n; r++) finish(total, r, in.d, out.data() + static_cast<size_t>(r) * in.d);
  return out;
}

std::vector<double> attend_in_double(const Inputs& in, int row, int visible, float cap) {
  std::vector<double> logits, out(static_cast<size_t>(in.d), 0.0);
  double max = -1e300, sum = 0;
  const int n = (in.n_pages - 1) * 64 + visible;
  for (int t = 0; t < n; t++) {
    double dot = 0;
    for (int c = 0; c < in.d; c++)
      dot += static_cast<double>(in.q[row * in.d + c]) * in.page_k(t / 64)[c * 64 + t % 64];
    dot *= static_cast<double>(0.3f);
    if (cap > 0) dot = cap * std::tanh(dot / cap);
    logits.push_back(dot);
    max = std::max(max, dot);
  }
  for (double& l : logits) sum += l = std::exp(l - max);
  for (int t = 0; t < n; t++)
    for (int c = 0; c < in.d; c++) out[c] += logits[t] * in.page_v(t / 64)[t % 64 * in.d + c] / sum;
  return out;
}

TEST(AttendKernel, MatchesDoublePrecisionOnEveryTarget) {
  for_each_simd_target([] {
    for (const int d : {16, 64, 80, 112, 128})
      for (const float cap : {0.f, 5.f}) {
        const Inputs in(d, 9, 3);
        const auto out = attend(in, 0, 9, 20, 3, 2, cap);
        for (int r = 0; r < 9; r++) {
          const auto want = attend_in_double(in, r, 20 + r / 3, cap);
          for (int c = 0; c < d; c++)
            ASSERT_NEAR(out[r * d + c], want[c], 1e-5) << d << " row " << r << " cap " << cap;
        }
      }
  });
}

TEST(AttendKernel, ARowsBitsDoNotDependOnItsTile) {
  for_each_simd_target([] {
    for (const int d : {64, 80, 128}) {
      const int rows_per_query = 3, n = 45;
      const Inputs in(d, n, 5);
      const auto whole = attend(in, 0, n, 30, rows_per_query, 2, 0);
      for (const int tile : {1, 2, 3, 6, 21})  // in queries
        for (int query = 0; query < n / rows_per_query; query += tile) {
          const int rows = std::min(tile * rows_per_query, n - query * rows_per_query);
          const auto part = attend(in, query * rows_per_query, rows, 30 + query, rows_per_query, 2, 0);
          ASSERT_EQ(std::memcmp(part.data(), whole.data() + static_cast<size_t>(query) * rows_per_query * d,
                                part.size() * sizeof(float)),
                    0)
              << d << " tile " << tile << " query " << query;
        }
    }
  });
}

TEST(AttendKernel, TokensBeyondARowsOwnAreNotRead) {
  for_each_simd_target([] {
    Inputs in(64, 8, 2);
    const auto want = attend(in, 0, 8, 10, 1, 16, 0);
    for (int t = 13; t < 64; t++)  // rows 0..3 see tokens below 10..13
      for (int c = 0; c < 64; c++) {
        in.k[64 * 64 + c * 64 + t] = std::numeric_limits<float>::quiet_NaN();
        in.v[64 * 64 + t * 64 + c] = std::numeric_limits<float>::infinity();
      }
    const auto got = attend(in, 0, 8, 10, 1, 16, 0);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), 4 * 64 * sizeof(float)), 0);
    EXPECT_TRUE(std::isnan(got[4 * 64]));
  });
}

// Sums go in index order or in 16 fixed lanes, so the width of a vector does not show.
TEST(AttendKernel, TargetsGiveTheSameBits) {
  const Inputs in(96, 12, 4);
  std::vector<std::vector<float>> results;
  for_each_simd_target([&] { results.push_back(attend(in, 0, 12, 17, 4, 2, 30.f)); });
  for (const auto& r : results) EXPECT_EQ(r, results[0]);
}

// Logits far apart and far from zero: weights of 0 and 1, no overflow.
TEST(AttendKernel, ExtremeLogits) {
  for_each_simd_target([] {
    Inputs in(16, 1, 2);
    for (float& x : in.q) x = 1.f;
    for (float& x : in.k) x = -300.f;
    for (int c = 0; c < 16; c++) in.k[64 * 16 + c * 64 + 5] = 300.f;
    const auto out = attend(in, 0, 1, 40, 1, 1, 0);
    for (int c = 0; c < 16; c++) EXPECT_EQ(out[c], in.v[64 * 16 + 5 * 16 + c]);
  });
}

}  // namespace
}  // namespace kv2::cpu
