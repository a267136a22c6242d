// SPDX-License-Identifier: Apache-2.0
// Page counts against exhaustive simulation: sets of pages that grow and shrink exactly as the rule says,
// over every start and every size of forward. Byte counts against arithmetic written out here.
#include "cache/cache_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kv2/error.h"

namespace kv2 {
namespace {

/// Most full pages that a sequence holds at once on its way from n to target: every page any query of a
/// forward reads in full, every page written in it, and every page demoted in it; by the rule alone.
int64_t simulated_need(const Visibility& rule, int64_t chunk, int64_t n, int64_t target) {
  const auto begun_and_not_freed = [&](int64_t tokens) {
    std::set<int64_t> pages;
    for (int64_t pos = 0; pos < tokens; pos++)
      if (!rule.packed(static_cast<int>(tokens / kPageTokens), static_cast<int>(pos / kPageTokens)))
        pages.insert(pos / kPageTokens);
    return pages;
  };
  size_t most = begun_and_not_freed(n).size();
  for (int64_t from = n; from < target; from++) {
    std::set<int64_t> pages = begun_and_not_freed(from);
    for (int64_t to = from + 1; to <= std::min(from + chunk, target); to++) {
      pages.insert((to - 1) / kPageTokens);
      most = std::max(most, pages.size());
    }
  }
  return static_cast<int64_t>(most);
}

TEST(PageNeed, FullIsTheExactMaximumOverAllChunkings) {
  for (const auto& [sink, recent] : {std::pair{0, 0}, {1, 0}, {0, 2}, {1, 1}, {2, 1}}) {
    for (const int chunk : {1, 2, 63, 64, 65, 66, 100, 127, 128, 129, 130, 200}) {
      const Visibility rule{sink, recent, true};
      const PageNeed need{.rule = rule, .chunk_tokens = chunk};
      for (const int64_t n : {0, 1, 63, 64, 65, 127, 128, 200, 256, 319, 320}) {
        for (const int64_t more : {0, 1, 2, 62, 63, 64, 65, 129, 192, 260}) {
          ASSERT_EQ(need.full(n, n + more), simulated_need(rule, chunk, n, n + more))
              << "sink " << sink << " recent " << recent << " chunk " << chunk << " from " << n << " for "
              << more;
        }
      }
    }
  }
}

TEST(PageNeed, InTheMiddleOfALongPromptItIsTheClosedForm) {
  for (int chunk = 1; chunk <= 700; chunk++) {
    const PageNeed need{.rule = {1, 4, true}, .chunk_tokens = chunk};
    ASSERT_EQ(need.full(0, 100000), 1 + 4 + 1 + (chunk + 62) / 64) << "chunk " << chunk;
  }
}

TEST(PageNeed, NeverGrowsWithProgress) {  // what commit() relies on
  for (const int chunk : {1, 7, 64, 100}) {
    const PageNeed need{.rule = {1, 2, true}, .chunk_tokens = chunk};
    for (const int64_t target : {1, 64, 300, 640, 1001})
      for (int64_t n = 0; n < target; n++) ASSERT_LE(need.full(n + 1, target), need.full(n, target));
  }
}

TEST(PageNeed, BoundariesAndPolicies) {
  const PageNeed need{.rule = {1, 4, true}, .chunk_tokens = 512};
  EXPECT_EQ(need.packed(0), 0);
  EXPECT_EQ(need.packed(6 * 64 - 1), 0);
  EXPECT_EQ(need.packed(6 * 64), 1);
  EXPECT_EQ(need.packed(7 * 64 - 1), 1);
  EXPECT_EQ(need.full(0, 1), 1);
  const PageNeed exact{.rule = {1, 4, true}, .prefill = PrefillPolicy::Exact, .chunk_tokens = 512};
  EXPECT_EQ(exact.full(0, 10000), pages_of(10000));
  EXPECT_EQ(exact.packed(10000), need.packed(10000));
  const PageNeed bf16{.rule = {1, 4, false}, .chunk_tokens = 512};
  EXPECT_EQ(bf16.full(0, 10000), pages_of(10000));
  EXPECT_EQ(bf16.packed(10000), 0);
}

CacheSpec int2_spec() {
  return CacheSpec::parse("naive2");
}

TEST(CachePlan, BytesByHand) {
  const KvShape shape{.n_layers = 3, .n_heads = 4, .n_kv_heads = 2, .head_dim = 64};
  const CachePlan plan =
      plan_cache(int2_spec(), shape,
                 {.context_tokens = 5000, .n_sequences = 2, .chunk_tokens = 64, .prefix_full_pages = 3});
  EXPECT_EQ(plan.n_full_pages, 2 * (1 + 4 + 1 + 1) + 3);
  EXPECT_EQ(plan.n_packed_pages, 2 * (78 - 5));  // 5000 / 64 = 78.1: the last query's page is 78
  EXPECT_EQ(plan.full_bytes, plan.n_full_pages * 3u * 2 * (64 * 64 * 2 * 2));
  EXPECT_EQ(plan.packed_bytes, plan.n_packed_pages * 3u * 2 * (2 * 64 * 64 / 4 + 2 * 64 * 4));
  EXPECT_EQ(plan.table_bytes, 2u * 79 * 2 * 4);
  EXPECT_EQ(plan.transform_bytes, 0u);
  EXPECT_EQ(plan.total_bytes(), plan.full_bytes + plan.packed_bytes + plan.table_bytes);
}

TEST(CachePlan, AllInBitsFallTowardsHistoryBits) {
  const KvShape shape{.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 128};
  const CachePlan plan = plan_cache(int2_spec(), shape, {.context_tokens = 200000});
  EXPECT_DOUBLE_EQ(plan.layout.history_bits(), 2.25);
  EXPECT_GT(plan.all_in_bits(1), 16.0 * 60);  // one token holds a page of 64
  EXPECT_NEAR(plan.all_in_bits(64), 16, 0.01);
  // 1000 full and partial pages by hand: token 64000 is in page 999, which reads 1 + 4 + 1 pages in full; the
  // forward that ends there packs up to page 995 - 1.
  const double bytes =
      6.0 * plan.layout.full_page_bytes() + 995.0 * plan.layout.packed_page_bytes() + 1000 * 8;
  EXPECT_DOUBLE_EQ(plan.all_in_bits(64000), bytes * 8 / (1000.0 * plan.layout.page_elements()));
  EXPECT_LT(plan.all_in_bits(128000), 2.30);
  EXPECT_GT(plan.all_in_bits(128000), 2.25);
  CacheSpec bf16;
  EXPECT_NEAR(plan_cache(bf16, shape, {.context_tokens = 6400}).all_in_bits(6400), 16, 0.01);
}

TEST(CachePlan, HadamardIsStoredOnceAndCalibratedPerLayer) {
  const KvShape shape{.n_layers = 5, .n_heads = 2, .n_kv_heads = 2, .head_dim = 32};
  CacheSpec spec = int2_spec();
  spec.method.transform = TransformKind::Hadamard;
  EXPECT_EQ(plan_cache(spec, shape, {.context_tokens = 64}).transform_bytes, 2u * 32 * 32 * 4);
  spec.method.transform = TransformKind::Calibrated;
  EXPECT_EQ(plan_cache(spec, shape, {.context_tokens = 64}).transform_bytes, 5u * 4 * 2 * 32 * 32 * 4);
  spec.method.centring = Centring::Keys;
  EXPECT_EQ(plan_cache(spec, shape, {.context_tokens = 64}).transform_bytes,
            5u * (4 * 2 * 32 * 32 * 4 + 2 * 32 * 4));
}

TEST(CachePlan, CoderTablesAreCountedPerSideThatHasThem) {
  const KvShape shape{.n_layers = 5, .n_heads = 2, .n_kv_heads = 2, .head_dim = 128};
  const auto coder_bytes = [&](const char* method) {
    return plan_cache(CacheSpec::parse(method), shape, {.context_tokens = 64}).coder_bytes;
  };
  const size_t side = 5 * 2 * 4 * (128 * 128 + 128 + 128);  // F, weights, one group's ones
  EXPECT_EQ(coder_bytes("oscar2"), 0u);
  EXPECT_EQ(coder_bytes("kv2"), 2 * side);
  EXPECT_EQ(coder_bytes("kv2:feedback=k"), side);
  EXPECT_EQ(coder_bytes("kv2:feedback=v"), side);
  EXPECT_EQ(coder_bytes("kv2:group=32"), 2 * (side + 5 * 2 * 4 * 3 * 128));
}

TEST(CachePlan, ContextThatFitsIsTheBorder) {
  const KvShape shape{.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 64};
  for (const PrefillPolicy prefill : {PrefillPolicy::Windowed, PrefillPolicy::Exact}) {
    for (const size_t bytes : {size_t{1} << 20, size_t{10} << 20, size_t{3} << 30, size_t{1} << 44}) {
      CacheSpec spec = int2_spec();
      spec.prefill = prefill;
      CacheCapacity capacity{.n_sequences = 3, .chunk_tokens = 100};
      capacity.context_tokens = context_that_fits(spec, shape, capacity, bytes);
      ASSERT_GT(capacity.context_tokens, 0);
      EXPECT_LE(plan_cache(spec, shape, capacity).total_bytes(), bytes);
      capacity.context_tokens += 64;
      EXPECT_GT(plan_cache(spec, shape, capacity).total_bytes(), bytes);
    }
  }
  EXPECT_EQ(context_that_fits(int2_spec(), shape, {}, 1000), 0);
}

TEST(CachePlan, RefusesWhatIsNoCapacity) {
  const KvShape shape{.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 64};
  const auto code = [&](const CacheCapacity& c) {
    try {
      plan_cache(int2_spec(), shape, c);
    } catch (const Error& e) {
      return e.code();
    }
    return ErrorCode::Bug;
  };
  EXPECT_EQ(code({.context_tokens = 0}), ErrorCode::BadArgument);
  EXPECT_EQ(code({.context_tokens = 64, .n_sequences = 0}), ErrorCode::BadArgument);
  EXPECT_EQ(code({.context_tokens = 64, .chunk_tokens = 0}), ErrorCode::BadArgument);
  EXPECT_EQ(code({.context_tokens = 64, .prefix_full_pages = -1}), ErrorCode::BadArgument);
  EXPECT_EQ(code({.context_tokens = INT64_MAX}), ErrorCode::OutOfMemory);
  EXPECT_EQ(code({.context_tokens = int64_t{1} << 36, .n_sequences = 64}), ErrorCode::OutOfMemory);
}

}  // namespace
}  // namespace kv2
