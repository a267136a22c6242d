// SPDX-License-Identifier: Apache-2.0
// Linears from codes: against double precision on every SIMD target, the same bits on all of them, and a
// row's bits in any batch and on any number of threads.
#include "cpu/coded_linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/float16.h"
#include "cpu/test_targets.h"

namespace kv2::cpu {
namespace {

struct Format {
  int bits, block, zero;
  bool has_offset, fp16;
};
constexpr Format kFormats[] = {
    {4, 32, 8, false, true},    {4, 32, 0, true, true},  {6, 32, 16, false, true}, {6, 32, 0, true, false},
    {8, 32, 128, false, true},  {4, 16, 0, true, false}, {4, 16, 4, false, false}, {6, 16, 32, false, false},
    {8, 16, 128, false, false}, {4, 32, 0, true, false}};

/// A random matrix in codes, and rows with a mean and an outlier.
struct Inputs {
  Format format;
  int n_in, n_out, n_rows;
  std::vector<uint8_t> codes;
  std::vector<float> scale, offset, bias, rows;

  Inputs(Format f, int n_in, int n_out, int n_rows, float outlier = 60.f)
      : format(f), n_in(n_in), n_out(n_out), n_rows(n_rows) {
    std::mt19937 random(static_cast<unsigned>(f.bits * 1000 + n_in + n_out));
    std::normal_distribution<float> normal(0.2f, 1.f);
    const size_t n = static_cast<size_t>(n_in) * n_out, parts = n / f.block;
    for (size_t i = 0; i < n; i++) codes.push_back(static_cast<uint8_t>(random() % (1u << f.bits)));
    const auto param = [&](float x) { return f.fp16 ? to_float(to_fp16(x)) : x; };
    for (size_t i = 0; i < parts; i++) {
      scale.push_back(param(0.01f * normal(random)));
      offset.push_back(param(0.03f * normal(random)));
    }
    for (int i = 0; i < n_out; i++) bias.push_back(normal(random));
    for (int i = 0; i < n_rows * n_in; i++) rows.push_back(normal(random) * (i % 97 == 5 ? outlier : 1.f));
  }
  LinearSource source() const {
    LinearSource s{.n_in = n_in, .n_out = n_out, .fill = [](int, int, float*) {}, .bias = bias};
    s.coded = {.bits = format.bits,
               .block = format.block,
               .zero = format.zero,
               .has_offset = format.has_offset,
               .params_in_fp16 = format.fp16,
               .fill = [this](int row0, int n, uint8_t* c, float* sc, float* of) {
                 const size_t parts = static_cast<size_t>(n_in / format.block);
                 std::copy_n(codes.begin() + static_cast<size_t>(row0) * n_in, static_cast<size_t>(n) * n_in,
                             c);
                 std::copy_n(scale.begin() + row0 * parts, n * parts, sc);
                 std::copy_n(offset.begin() + row0 * parts, n * parts, of);
               }};
    return s;
  }
  double weight(int out, int in) const {
    const size_t part = static_cast<size_t>(out) * (n_in / format.block) + in / format.block;
    const double w = double{scale[part]} * (codes[static_cast<size_t>(out) * n_in + in] - format.zero);
    return format.has_offset ? w + offset[part] : w;
  }
  /// Rows in pieces of `batch`, added to 1.
  std::vector<float> run(int batch, int threads) const {
    ThreadTeam team(threads);
    CodedLinears linears(team, HugePages::On);
    AlignedBuffer scratch;
    const auto linear = linears.pack(source());
    std::vector<float> out(static_cast<size_t>(n_rows) * n_out, 1.f);
    for (int r = 0; r < n_rows; r += batch)
      linears.multiply(dynamic_cast<const CodedLinear&>(*linear),
                       {.in = rows.data() + static_cast<size_t>(r) * n_in,
                        .out = out.data() + static_cast<size_t>(r) * n_out,
                        .n_rows = std::min(batch, n_rows - r),
                        .accumulate = Accumulate::Yes},
                       scratch);
    return out;
  }
};

/// ‖got − want‖ ÷ norm of the terms, the worst of all rows, with `got` the bits of every target.
double worst_error(const Inputs& in) {
  std::vector<std::vector<float>> results;
  for_each_simd_target([&] { results.push_back(in.run(in.n_rows, 1)); });
  for (const auto& r : results) EXPECT_EQ(r, results[0]);
  double worst = 0;
  for (int row = 0; row < in.n_rows; row++) {
    double error = 0, norm = 0;
    for (int o = 0; o < in.n_out; o++) {
      double want = 1 + double{in.bias[o]}, size = 0;
      for (int i = 0; i < in.n_in; i++) {
        const double term = in.weight(o, i) * in.rows[static_cast<size_t>(row) * in.n_in + i];
        want += term;
        size += term * term;
      }
      error += std::pow(results[0][static_cast<size_t>(row) * in.n_out + o] - want, 2);
      norm += size + want * want;
    }
    worst = std::max(worst, std::sqrt(error / norm));
  }
  return worst;
}

// An element's rounding is 2^-17 of its block's largest: an outlier costs its neighbours in the block.
TEST(CodedLinear, AgreesWithDoublePrecisionOnEveryTargetInTheSameBits) {
  for (const Format& f : kFormats)
    for (const auto [n_in, n_out] : {std::pair{576, 40}, {32, 16}, {96, 1}, {1536, 33}}) {
      EXPECT_LE(worst_error(Inputs(f, n_in, n_out, 7, 1.f)), 1e-4)
          << f.bits << " bits, block " << f.block << " " << n_in;
      EXPECT_LE(worst_error(Inputs(f, n_in, n_out, 7, 60.f)), 1e-3)
          << f.bits << " bits, block " << f.block << " " << n_in;
    }
}

TEST(CodedLinear, ARowsBitsDoNotDependOnItsBatchOrTheThreads) {
  for (const Format& f : {kFormats[1], kFormats[4], kFormats[7]}) {
    const Inputs in(f, 576, 200, 300);
    const auto want = in.run(300, 1);
    for (const int batch : {1, 2, 3, 7, 64, 129})
      for (const int threads : {1, 3})
        ASSERT_EQ(in.run(batch, threads), want) << batch << " rows, " << threads << " threads";
  }
}

TEST(CodedLinear, NanInARowIsNanInItsOutputsAlone) {
  for (const Format& f : kFormats) {
    Inputs in(f, 64, 20, 3);
    in.rows[64 + 40] = std::numeric_limits<float>::quiet_NaN();
    const auto out = in.run(3, 1);
    for (int i = 0; i < 60; i++) EXPECT_EQ(std::isnan(out[i]), i / 20 == 1) << f.bits << " " << i;
  }
}

TEST(CodedLinear, ZerosGiveTheBias) {
  Inputs in(kFormats[0], 64, 20, 1);
  std::fill(in.rows.begin(), in.rows.end(), 0.f);
  const auto out = in.run(1, 1);
  for (int i = 0; i < 20; i++) EXPECT_EQ(out[i], 1 + in.bias[i]);
}

}  // namespace
}  // namespace kv2::cpu
