// SPDX-License-Identifier: Apache-2.0
// The oracle against things that are not the oracle: hand-made numbers, closed forms, and an attention
// written a second time from the dequantised rows and a dense mask.
#include "ops/reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>

#include "kv2/error.h"
#include "ops/cases/page_world.h"
#include "ops/op_case.h"
#include "quant/int2/int2.h"

namespace kv2 {
namespace {

using cases::Random;

TEST(Reference, LinearMultipliesSmallIntegersExactly) {
  const auto backend = make_reference_backend(LinearPrecision::F32);
  const std::vector<float> bias = {100, 200};
  const auto weights = backend->make_linear({3, 2,
                                             [](int row0, int n, float* out) {
                                               for (int r = 0; r < n; r++)
                                                 for (int i = 0; i < 3; i++)
                                                   out[r * 3 + i] = (row0 + r) * 10 + i + 1;
                                             },
                                             bias});
  const float in[] = {1, 2, 3, -1, 0, 1};
  float out[4] = {0.5f, 0.5f, 0.5f, 0.5f};
  backend->linear(*weights, {in, out, 2, Accumulate::No});
  EXPECT_EQ(std::vector<float>(out, out + 4), (std::vector<float>{114, 274, 102, 202}));
  backend->linear(*weights, {in, out, 2, Accumulate::Yes});
  EXPECT_EQ(std::vector<float>(out, out + 4), (std::vector<float>{228, 548, 204, 404}));
}

TEST(Reference, Bf16LinearRoundsInputsAndWeights) {
  const auto backend = make_reference_backend(LinearPrecision::Bf16);
  EXPECT_EQ(backend->linear_precision(), "bf16");
  const auto weights =
      backend->make_linear({1, 1, [](int, int, float* out) { *out = 1.00390625f; }, {}});  // 1 + 2^-8
  const float in = 3.0117188f;  // 3 + 3·2^-8: between 3 and 3 + 2^-6, nearer the latter
  float out = 0;
  backend->linear(*weights, {&in, &out, 1, Accumulate::No});
  EXPECT_EQ(out, 3.015625f);  // the weight ties to even: 1
}

TEST(Reference, RmsNormOfAConstantRowIsItsSign) {
  const auto backend = make_reference_backend(LinearPrecision::F32);
  std::vector<float> x(7, -3.0f), weight = {1, 2, 3, 4, 5, 6, 7};
  backend->rms_norm({x.data(), weight.data(), x.data(), 1, 7, 0.0f});
  for (int i = 0; i < 7; i++) EXPECT_EQ(x[i], -weight[i]);
}

TEST(Reference, RopeIsAComplexRotationInBothPairings) {
  const auto backend = make_reference_backend(LinearPrecision::F32);
  const std::vector<float> inv_frequency = {1.0f, 0.01f};
  for (const int64_t pos : {int64_t{0}, int64_t{1}, int64_t{131071}}) {
    for (const RopePairing pairing : {RopePairing::Adjacent, RopePairing::Halves}) {
      const bool adjacent = pairing == RopePairing::Adjacent;
      std::vector<float> x = {1, 2, 3, 4};
      const std::complex<double> before[] = {{x[0], x[adjacent ? 1 : 2]}, {x[adjacent ? 2 : 1], x[3]}};
      backend->rope({x.data(), &pos, inv_frequency.data(), 1, 1, 4, pairing});
      const std::complex<double> after[] = {{x[0], x[adjacent ? 1 : 2]}, {x[adjacent ? 2 : 1], x[3]}};
      for (int i = 0; i < 2; i++) {
        const auto want = before[i] * std::polar(1.0, static_cast<double>(pos) * inv_frequency[i]);
        EXPECT_NEAR(std::abs(after[i] - want), 0, 1e-6) << "pair " << i << " at " << pos;
      }
    }
  }
}

TEST(Reference, RopeKeepsTheProductOfQueryAndKeyAtTheirDistance) {
  const auto backend = make_reference_backend(LinearPrecision::F32);
  const int d = 64;
  Random random(3);
  const std::vector<float> q = random.normals(d, 0.3f, 1), k = random.normals(d, 0.3f, 1);
  std::vector<float> inv_frequency(d / 2);
  for (int i = 0; i < d / 2; i++) inv_frequency[i] = std::pow(10000.0f, -2.0f * i / d);
  const auto product = [&](int64_t pos_q, int64_t pos_k) {
    std::vector<float> x = q, y = k;
    backend->rope({x.data(), &pos_q, inv_frequency.data(), 1, 1, d, RopePairing::Halves});
    backend->rope({y.data(), &pos_k, inv_frequency.data(), 1, 1, d, RopePairing::Halves});
    double sum = 0;
    for (int i = 0; i < d; i++) sum += static_cast<double>(x[i]) * y[i];
    return sum;
  };
  EXPECT_NEAR(product(100, 37), product(131071, 131008), 1e-4);
  EXPECT_GT(std::abs(product(100, 37) - product(100, 38)), 1e-2);
}

TEST(Reference, TransformThenItsTransposeReturnsARotationsInput) {
  const auto backend = make_reference_backend(LinearPrecision::F32);
  const int d = 4;
  // a rotation per KV head, by angles 0.3 and 1.1 in two planes; query heads 0,1 use the first, 2,3 the
  // second
  std::vector<float> matrix(2 * d * d, 0.0f);
  for (int h = 0; h < 2; h++) {
    const float c = std::cos(h ? 1.1f : 0.3f), s = std::sin(h ? 1.1f : 0.3f);
    float* m = &matrix[h * d * d];
    m[0] = c, m[1] = s, m[4] = -s, m[5] = c, m[10] = c, m[11] = s, m[14] = -s, m[15] = c;
  }
  const std::vector<float> in = Random(1).normals(3 * 4 * d, 1.0f, 1.0f),
                           mean = Random(2).normals(2 * d, 0.5f, 1.0f);
  std::vector<float> there(in.size()), back(in.size());
  backend->transform({in.data(), there.data(), matrix.data(), mean.data(), nullptr, 3, 4, 2, d, false});
  backend->transform({there.data(), back.data(), matrix.data(), nullptr, mean.data(), 3, 4, 2, d, true});
  EXPECT_NEAR(there[0], (in[0] - mean[0]) * matrix[0] + (in[1] - mean[1]) * matrix[4], 1e-6);
  for (size_t i = 0; i < in.size(); i++) EXPECT_NEAR(back[i], in[i], 2e-6) << i;
}

TEST(Reference, SwigluOfKnownValues) {
  const auto backend = make_reference_backend(LinearPrecision::F32);
  const float rows[] = {0, 100, -100, 5, 3, 2, -1, 7};  // row 1: gate 0, 100, -100, 5 ; up 3, 2, -1, 7
  float out[4];
  backend->swiglu({rows, rows + 4, out, 1, 4, 8});
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_EQ(out[1], 200.0f);
  EXPECT_NEAR(out[2], 0.0f, 1e-40);
  EXPECT_NEAR(out[3], 35.0f / (1 + std::exp(-5.0f)), 1e-5);
}

/// Dense attention of one sequence and KV head: all keys as two matrices (full and dequantised), a mask of
/// which to read, softmax by the log-sum-exp of float sums sorted by size. Shares no code with the backend.
std::vector<double> dense_attention(const cases::PageWorld& world, int sequence, int kv_head, const float* q,
                                    int64_t pos, double cap) {
  const int d = world.spec().shape.head_dim;
  const int64_t n = pos + 1;
  std::vector<double> logits(n), out(d, 0.0);
  std::vector<std::vector<float>> v(n);
  for (int64_t key = 0; key < n; key++) {
    const int page = key / 64, token = key % 64;
    const int64_t sink_end = 64 * world.spec().rule.sink_pages;
    const int64_t recent_begin = pos / 64 * 64 - 64 * world.spec().rule.recent_pages;
    std::vector<float> k(d);
    v[key].resize(d);
    const std::vector<std::byte> full = world.canonical_full(sequence, page, kv_head);
    const auto* rows = reinterpret_cast<const bf16*>(full.data());
    for (int c = 0; c < d; c++)
      k[c] = to_float(rows[token * d + c]), v[key][c] = to_float(rows[(64 + token) * d + c]);
    if (key >= sink_end && key < recent_begin) {
      const int group = world.spec().group;
      std::vector<uint8_t> codes(d);
      std::vector<fp16> scale(d / group), offset(d / group);
      int2::encode_vector(rows + token * d, d, world.spec().coder_k(), codes.data(), scale.data(),
                          offset.data());
      for (int c = 0; c < d; c++) k[c] = to_float(scale[c / group]) * codes[c] + to_float(offset[c / group]);
      int2::encode_vector(rows + (64 + token) * d, d, world.spec().coder_v(), codes.data(), scale.data(),
                          offset.data());
      for (int c = 0; c < d; c++)
        v[key][c] = to_float(scale[c / group]) * codes[c] + to_float(offset[c / group]);
    }
    long double dot = 0;
    for (int c = d; c-- > 0;) dot += static_cast<long double>(q[c]) * k[c];
    logits[key] = static_cast<double>(dot) / std::sqrt(static_cast<double>(d));
    if (cap > 0) logits[key] = cap * std::tanh(logits[key] / cap);
  }
  long double sum = 0;
  for (const double x : logits) sum += std::exp(static_cast<long double>(x));
  for (int64_t key = 0; key < n; key++)
    for (int c = 0; c < d; c++)
      out[c] += static_cast<double>(std::exp(static_cast<long double>(logits[key])) / sum) * v[key][c];
  return out;
}

TEST(Reference, AttendEqualsADenseSoftmaxOverDequantisedRows) {
  const auto backend = make_reference_backend(LinearPrecision::F32);
  for (const float cap : {0.0f, 4.0f}) {
    const auto world = std::make_shared<const cases::PageWorld>(cases::WorldSpec{.shape = {2, 4, 2, 64},
                                                                                 .layer = 1,
                                                                                 .group = 32,
                                                                                 .rule = {1, 1, true},
                                                                                 .n_tokens = {300, 70},
                                                                                 .key_mean = 0.5f,
                                                                                 .seed = 9});
    const cases::DevicePages pages(*backend, world);
    pages.fill_full();
    pages.fill_packed();
    const std::vector<cases::Segment> segments = {{1, 60, 10}, {0, 180, 25}, {0, 299, 1}};
    const cases::Views views = world->views(segments);
    const int n_rows = 36, width = 4 * 64;
    const std::vector<float> q = Random(4).normals(n_rows * width, 0.2f, 1.0f);
    std::vector<float> out(q.size(), NAN);
    backend->attend({1, q.data(), out.data(), pages.view(), views.views, 0.125f, cap});
    int row = 0;
    for (const cases::Segment& s : segments) {
      for (int i = 0; i < s.n_rows; i++, row++) {
        for (int h = 0; h < 4; h++) {
          const size_t at = row * width + h * 64;
          const auto want = dense_attention(*world, s.sequence, h / 2, &q[at], s.first_pos + i, cap);
          for (int c = 0; c < 64; c++)
            ASSERT_NEAR(out[at + c], want[c], 2e-6) << "row " << row << " head " << h;
        }
      }
    }
  }
}

TEST(Reference, AttendReadsEverythingInFullBelowFullUntil) {
  const auto backend = make_reference_backend(LinearPrecision::F32);
  cases::WorldSpec spec{.shape = {1, 1, 1, 64}, .group = 64, .rule = {0, 0, true}, .n_tokens = {200}};
  const auto attend = [&](bool quantized, int64_t full_until) {
    spec.rule.quantized = quantized;
    const auto world = std::make_shared<const cases::PageWorld>(spec);
    const cases::DevicePages pages(*backend, world);
    pages.fill_full();
    pages.fill_packed();
    const cases::Views views = world->views(std::vector<cases::Segment>{{0, 150, 50, full_until}});
    const std::vector<float> q = Random(4).normals(50 * 64, 0.2f, 1.0f);
    std::vector<float> out(q.size());
    backend->attend({0, q.data(), out.data(), pages.view(), views.views, 0.125f, 0.0f});
    return out;
  };
  const auto bf16 = attend(false, 0), packed = attend(true, 0), mixed = attend(true, 170),
             exact = attend(true, 200);
  EXPECT_EQ(exact, bf16);
  for (int row = 0; row < 50; row++) {
    const auto& want = row < 20 ? bf16 : packed;
    EXPECT_TRUE(std::equal(&want[row * 64], &want[row * 64] + 64, &mixed[row * 64])) << row;
    EXPECT_FALSE(std::equal(&bf16[row * 64], &bf16[row * 64] + 64, &packed[row * 64])) << row;
  }
}

TEST(Reference, RefusesAPageThatIsNotHeld) {
  const auto backend = make_reference_backend(LinearPrecision::F32);
  const auto world = std::make_shared<const cases::PageWorld>(
      cases::WorldSpec{.shape = {1, 1, 1, 64}, .group = 64, .rule = {}, .n_tokens = {70}});
  const cases::DevicePages pages(*backend, world);
  pages.fill_full();
  cases::Views views = world->views(std::vector<cases::Segment>{{0, 69, 1}});
  views.tables[0][0] = -1;
  std::vector<float> q(64, 1.0f), out(64);
  EXPECT_THROW(backend->attend({0, q.data(), out.data(), pages.view(), views.views, 0.125f, 0.0f}), Error);
}

// append and demote cases compare canonical bytes; on this backend those are compared with the world's own
// bytes.
TEST(Reference, AppendedAndDemotedPagesAreTheWorldsBytes) {
  const auto backend = make_reference_backend(LinearPrecision::F32);
  const auto world = std::make_shared<const cases::PageWorld>(cases::WorldSpec{
      .shape = {2, 2, 2, 80}, .layer = 1, .group = 40, .rule = {}, .n_tokens = {128, 64}, .key_mean = 2.0f});
  const cases::DevicePages appended(*backend, world), filled(*backend, world);
  filled.fill_full();
  filled.fill_packed();
  const std::vector<cases::Segment> all = {{1, 0, 64}, {0, 0, 128}};
  std::vector<float> k = world->keys(1), v = world->values(1);
  k.insert(k.end(), world->keys(0).begin(), world->keys(0).end());
  v.insert(v.end(), world->values(0).begin(), world->values(0).end());
  const cases::Views views = world->append_views(all);
  backend->append({1, k.data(), v.data(), appended.view(), views.views});
  EXPECT_EQ(appended.export_all_full(), filled.export_all_full());
  std::vector<Demotion> demotions;
  for (const auto& [sequence, page] : {std::pair{0, 0}, {0, 1}, {1, 0}})
    demotions.push_back({world->full_slot(sequence, page), world->packed_slot(sequence, page)});
  backend->demote({1, world->spec().coder_k(), world->spec().coder_v(), appended.view(), demotions});
  EXPECT_EQ(appended.export_all_packed(), filled.export_all_packed());
}

TEST(Reference, InvarianceOfPages) {
  const auto backend = make_reference_backend(LinearPrecision::F32);
  for (const InvarianceCase& c : invariance_cases("append", 0))
    EXPECT_EQ(check_invariance(c, {backend.get()}), "");
}

TEST(Reference, InvarianceOfLinear) {
  for (const LinearPrecision precision : {LinearPrecision::F32, LinearPrecision::Bf16}) {
    const auto backend = make_reference_backend(precision);
    for (const InvarianceCase& c : invariance_cases("linear", 17))
      EXPECT_EQ(check_invariance(c, {backend.get()}), "");
  }
}

// One of the attend cases: the reference has no tiles that could make a difference, the rest would only cost
// time.
TEST(Reference, InvarianceOfAttend) {
  const auto backend = make_reference_backend(LinearPrecision::F32);
  for (const InvarianceCase& c : invariance_cases("attend", 0)) {
    if (c.name.find("sink=1 recent=4") != std::string::npos) {
      EXPECT_EQ(check_invariance(c, {backend.get()}), "");
    }
  }
}

}  // namespace
}  // namespace kv2
