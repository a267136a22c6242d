// SPDX-License-Identifier: Apache-2.0
// Every op case and every invariance case of src/ops on the CPU backend: for each SIMD target that this
// machine can run, each precision of linears, and teams of 1, 2 and 3 threads.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cpu/cpu_backend.h"
#include "kv2/error.h"
#include "ops/arg_max.h"
#include "ops/cases/inputs.h"
#include "ops/device_extras.h"
#include "ops/op_case.h"

namespace kv2 {
namespace {

const char* name_of(LinearPrecision precision) {
  return precision == LinearPrecision::Auto ? "auto" : precision == LinearPrecision::F32 ? "f32" : "bf16";
}

/// nullptr where this machine has no bf16 path: that is a refusal with a reason, and the reason is printed.
std::unique_ptr<Backend> make_backend(int n_threads, LinearPrecision precision) {
  try {
    return make_cpu_backend({.n_threads = n_threads, .precision = precision});
  } catch (const Error& e) {
    if (e.code() != ErrorCode::Unsupported || precision != LinearPrecision::Bf16) throw;
    std::printf("[   note   ] no bf16 backend here: %s\n", e.what());
    return nullptr;
  }
}

/// Runs `body` once per SIMD target with only that target allowed, in this folder and in quant.
template <class Body>
void for_each_target(const Body& body) {
  for (const int64_t target : simd_targets()) {
    force_simd_target(target);
    SCOPED_TRACE(simd_target_name(target));
    body(simd_target_name(target));
    force_simd_target(0);
    if (testing::Test::HasFatalFailure()) return;
  }
}

class CpuOp : public testing::TestWithParam<std::string> {};

TEST_P(CpuOp, AgreesWithTheReference) {
  const std::vector<OpCase> all = op_cases(GetParam());
  Oracle oracle;
  for_each_target([&](const std::string& target) {
    for (const LinearPrecision precision :
         {LinearPrecision::Auto, LinearPrecision::F32, LinearPrecision::Bf16}) {
      const auto backend = make_backend(2, precision);
      if (!backend) continue;
      if (precision != LinearPrecision::Auto) {
        EXPECT_EQ(backend->linear_precision(), name_of(precision));
      }
      double worst = 0;
      for (const OpCase& c : all)
        EXPECT_EQ(check_case(c, *backend, oracle, &worst), "") << name_of(precision);
      std::printf("[  worst   ] %s on %s, %s: %.3f of the bound\n", GetParam().c_str(), target.c_str(),
                  name_of(precision), worst);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, CpuOp, testing::ValuesIn(op_names()),
                         [](const auto& info) { return info.param; });

class CpuInvariance : public testing::TestWithParam<std::string> {};

TEST_P(CpuInvariance, SameBitsAloneInChunksInBatchesAndWithAnyNumberOfThreads) {
  const std::string best = simd_target_name(simd_targets().front());
  for_each_target([&](const std::string& target) {
    // linears are oneDNN's: the SIMD target rounds their inputs only, so fewer rows do on the other targets
    const std::vector<InvarianceCase> all = invariance_cases(GetParam(), target == best ? 513 : 65);
    for (const LinearPrecision precision : {LinearPrecision::F32, LinearPrecision::Bf16}) {
      std::vector<std::unique_ptr<Backend>> owned;
      std::vector<Backend*> backends;
      for (const int n_threads : {1, 2, 3}) {
        owned.push_back(make_backend(n_threads, precision));
        if (!owned.back()) break;
        backends.push_back(owned.back().get());
      }
      if (backends.size() < 3) continue;
      for (const InvarianceCase& c : all) EXPECT_EQ(check_invariance(c, backends), "") << name_of(precision);
      if (GetParam() != "linear") break;  // nothing else depends on the precision of linears
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, CpuInvariance, testing::Values("linear", "attend", "append"),
                         [](const auto& info) { return info.param; });

/// Rows of small whole numbers, so that the largest comes more than once, with NaN and infinities among them.
TEST(CpuArgMax, IsTheFirstOfTheLargestOnEveryTarget) {
  for_each_target([&](const std::string&) {
    const auto backend = make_backend(2, LinearPrecision::F32);
    cases::Random random(21);
    for (const int width : {1, 3, 16, 17, 63, 64, 65, 1000, 49152})
      for (const int kinds : {1, 3, 9, 1 << 20}) {
        constexpr int kRows = 5;
        std::vector<float> rows(static_cast<size_t>(kRows) * width);
        for (float& x : rows) {
          const uint64_t kind = random.next() % 16;
          x = kind == 0   ? NAN
              : kind == 1 ? -INFINITY
                          : static_cast<float>(random.next() % static_cast<uint64_t>(kinds)) - 4.f;
        }
        std::fill_n(rows.begin() + width, width, NAN);
        std::fill_n(rows.begin() + 2 * width, width, -INFINITY);
        rows[static_cast<size_t>(4) * width - 1] = INFINITY;  // row 3's last
        std::vector<int32_t> best(kRows);
        const cases::DeviceArray<float> device = cases::on_device(*backend, rows);
        arg_max(*backend, device.data(), kRows, width, best.data());
        for (int r = 0; r < kRows; r++)
          EXPECT_EQ(best[r], arg_max(std::span(rows).subspan(static_cast<size_t>(r) * width, width)))
              << "width " << width << " row " << r;
      }
  });
}

/// The same bits on every SIMD target, where that is promised: pages. (Elsewhere targets differ within the
/// bounds.)
TEST(CpuPages, BytesAreTheSameOnEveryTarget) {
  for (const char* op : {"append", "demote"}) {
    for (const OpCase& c : op_cases(op)) {
      std::vector<OpOutput> outputs;
      for_each_target([&](const std::string&) {
        const auto backend = make_backend(2, LinearPrecision::F32);
        OpRun run = c.prepare(*backend);
        run.run();
        outputs.push_back(run.output());
        ASSERT_EQ(compare_outputs(outputs.back(), outputs.front(), 0, nullptr), "") << c.name;
      });
    }
  }
}

TEST(CpuPages, CanonicalBytesSurviveTheRoundTripThroughThePrivateLayout) {
  const auto backend = make_backend(1, LinearPrecision::F32);
  cases::Random random(8);
  const auto random_bytes = [&](size_t n) {
    std::vector<std::byte> bytes(n);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.next());
    return bytes;
  };
  for (const int d : {64, 80, 96, 112, 128, 192, 256}) {
    const std::vector<std::byte> full = random_bytes(size_t{4} * kPageTokens * d);
    const cases::DeviceArray<std::byte> page(*backend, full.size());
    std::vector<std::byte> back(full.size());
    backend->import_full(page.data(), d, full);
    backend->export_full(page.data(), d, back);
    EXPECT_EQ(back, full) << "full, d = " << d;
    for (const int group : {d, d / 2, 16}) {
      if (d % group != 0 || group % 4 != 0) continue;
      const Int2Layout layout{d, group};
      const std::vector<std::byte> packed = random_bytes(layout.bytes());
      back.assign(packed.size(), std::byte{0});
      backend->import_packed(page.data(), layout, packed);
      backend->export_packed(page.data(), layout, back);
      EXPECT_EQ(back, packed) << "packed, d = " << d << " group = " << group;
    }
  }
}

}  // namespace
}  // namespace kv2
