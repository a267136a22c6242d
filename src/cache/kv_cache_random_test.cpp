// SPDX-License-Identifier: Apache-2.0
// KvCache under random schedules: prompts in chunks, decode, batches, forks, closes, prefix hits, eviction;
// every forward checked by World. At the end all memory must be there for full sequences again.
#include <gtest/gtest.h>

#include <random>

#include "cache/kv_cache_world.h"

namespace kv2 {
namespace {

struct Setting {
  int sink, recent;  // pages
  PrefillPolicy prefill;
  bool quantized;
  int chunk;
  int prefix_full_pages;
};

std::string name_of(const ::testing::TestParamInfo<Setting>& info) {
  const Setting& s = info.param;
  return fmt::format("{}_{}_{}_{}_chunk{}_prefix{}", s.sink, s.recent, s.quantized ? "int2" : "bf16",
                     s.prefill == PrefillPolicy::Exact ? "exact" : "windowed", s.chunk, s.prefix_full_pages);
}

CacheSpec spec_of(const Setting& s) {
  CacheSpec spec = CacheSpec::parse(s.quantized ? "naive2" : "bf16");
  spec.sink_tokens = 64 * s.sink;
  spec.recent_tokens = 64 * s.recent;
  spec.prefill = s.prefill;
  return spec;
}

class Schedule {
 public:
  static constexpr int kSequences = 4, kContext = 1300;

  Schedule(const Setting& setting, uint32_t seed)
      : world(spec_of(setting), {.context_tokens = kContext,
                                 .n_sequences = kSequences,
                                 .chunk_tokens = setting.chunk,
                                 .prefix_full_pages = setting.prefix_full_pages}),
        random_(seed) {
    for (auto& text : texts_) text = random_tokens(kContext);
  }

  void act() {
    switch (random_() % 12) {
      case 0:
      case 1:
        return open();
      case 2:
        return fork();
      case 3:
        return random_() % 2 ? close(below(talks.size())) : void();
      case 4:
        return remember();
      default:
        return forward();
    }
  }

  void close_all() {
    while (!talks.empty()) close(0);
  }

  World world;
  std::vector<std::unique_ptr<Talk>> talks;
  int64_t n_hits = 0, n_hit_tokens = 0, n_forks = 0;

 private:
  size_t below(size_t n) { return n == 0 ? 0 : random_() % n; }
  std::vector<int32_t> random_tokens(size_t n) {
    std::vector<int32_t> tokens(n);
    for (int32_t& t : tokens) t = random_() % 50;
    return tokens;
  }

  void open() {
    const uint64_t salt = random_() % 8 == 0;
    const auto id = world.cache.open(salt);
    ASSERT_EQ(id.has_value(), talks.size() < kSequences);
    if (!id) return;
    auto t = std::make_unique<Talk>();
    t->id = *id;
    t->salt = salt;
    // The start of a known text, and often something of its own behind it.
    t->tokens = texts_[below(texts_.size())];
    t->tokens.resize(std::min(t->tokens.size(), 1 + below(kContext - 1)));
    const auto own = random_tokens(random_() % 3 ? below(kContext - t->tokens.size()) / 2 : 0);
    t->tokens.insert(t->tokens.end(), own.begin(), own.end());
    t->prompt = t->tokens.size();
    if (random_() % 4 == 0) {
      ASSERT_TRUE(world.cache.reserve(t->id, t->prompt));
    }
    if (random_() % 4 != 0) {
      t->n = world.cache.attach_prefix(t->id, t->tokens);
      ASSERT_EQ(t->n % 64, 0);
      ASSERT_LT(t->n, t->prompt);
      n_hits += t->n > 0;
      n_hit_tokens += t->n;
      world.check_at_rest(*t);
    }
    if (random_() % 2) world.cache.remember_prefix(t->id, t->tokens);
    if (random_() % 3 == 0) {
      ASSERT_TRUE(world.cache.reserve(t->id, kContext - t->n));
    }
    talks.push_back(std::move(t));
  }

  void fork() {
    if (talks.empty()) return;
    Talk& from = *talks[below(talks.size())];
    const auto id = world.cache.fork(from.id);
    ASSERT_EQ(id.has_value(), talks.size() < kSequences);
    if (!id) return;
    auto t = std::make_unique<Talk>(from);
    t->id = *id;
    // Another continuation. Under exact the prompt is a property of the rows: it stays where it is.
    if (!world.exact() || t->n >= t->prompt) t->tokens.resize(t->n);
    world.check_at_rest(*t);
    talks.push_back(std::move(t));
    n_forks++;
  }

  void close(size_t i) {
    if (talks.empty()) return;
    if (random_() % 2) world.cache.remember_prefix(talks[i]->id, talks[i]->tokens);
    if (random_() % 4 == 0) {
      texts_[below(texts_.size())] = talks[i]->tokens;  // comes back as a prompt, answers included
    }
    world.cache.close(talks[i]->id);
    talks.erase(talks.begin() + i);
  }

  void remember() {
    if (talks.empty()) return;
    const Talk& t = *talks[below(talks.size())];
    world.cache.remember_prefix(t.id, t.tokens);
  }

  void forward() {
    std::vector<World::Part> parts;
    for (auto& t : talks) {
      if (random_() % 3 == 0 || t->n == kContext) continue;
      const int chunk = world.capacity.chunk_tokens;
      const int sizes[] = {1, 1, static_cast<int>(1 + below(chunk)), std::min(64, chunk), chunk, chunk};
      int n_rows = std::min<int>(sizes[below(6)], kContext - t->n);
      while (static_cast<int64_t>(t->tokens.size()) < t->n + n_rows) t->tokens.push_back(random_() % 50);
      parts.push_back({t.get(), n_rows});
    }
    if (!parts.empty()) world.forward(parts);
  }

  std::mt19937 random_;
  std::array<std::vector<int32_t>, 3> texts_;
};

class KvCacheRandom : public ::testing::TestWithParam<Setting> {};

TEST_P(KvCacheRandom, EveryQueryFindsEveryPage) {
  int64_t n_hits = 0, n_forks = 0;
  for (uint32_t seed = 1; seed <= 3; seed++) {
    Schedule s(GetParam(), seed);
    ASSERT_EQ(s.world.backend.live_bytes, s.world.cache.plan().total_bytes());
    for (int i = 0; i < (GetParam().chunk < 64 ? 1500 : 500); i++) {
      s.act();
      if (HasFatalFailure()) FAIL() << "seed " << seed << ", action " << i;
    }
    s.close_all();
    ASSERT_EQ(s.world.cache.used_bytes(), 0u);
    n_hits += s.n_hits;
    n_forks += s.n_forks;
    // Whatever the tree still keeps gives way: as many full sequences as planned fit again, side by side.
    std::vector<std::unique_ptr<Talk>> all;
    for (int i = 0; i < Schedule::kSequences; i++) {
      const auto id = s.world.cache.open();
      ASSERT_TRUE(id);
      ASSERT_TRUE(s.world.cache.reserve(*id, Schedule::kContext));
      auto t = std::make_unique<Talk>(Talk{.id = *id, .prompt = Schedule::kContext - 100});
      for (int k = 0; k < Schedule::kContext; k++) t->tokens.push_back(100 + i + k % 7);
      all.push_back(std::move(t));
    }
    ASSERT_FALSE(s.world.cache.open());
    while (all[0]->n < Schedule::kContext) {
      std::vector<World::Part> parts;
      const auto n_rows = std::min<int64_t>(s.world.capacity.chunk_tokens, Schedule::kContext - all[0]->n);
      for (auto& t : all) parts.push_back({t.get(), static_cast<int>(n_rows)});
      s.world.forward(parts);
      if (HasFatalFailure()) FAIL() << "seed " << seed << ", refill";
    }
    ASSERT_GT(s.world.n_pages_checked, 1000);
  }
  EXPECT_GT(n_hits, 0);
  EXPECT_GT(n_forks, 0);
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  const std::pair<int, int> windows[] = {{0, 0}, {1, 0}, {0, 4}, {1, 4}, {2, 8}};
  const int chunks[] = {1, 7, 64, 100, 512};
  int i = 0;
  for (const auto& [sink, recent] : windows)
    for (const PrefillPolicy prefill : {PrefillPolicy::Windowed, PrefillPolicy::Exact})
      for (const int prefix : {0, 12}) {
        all.push_back({sink, recent, prefill, true, chunks[i % 5], prefix});
        all.push_back({sink, recent, prefill, true, chunks[(i + 3) % 5], prefix});
        i++;
      }
  all.push_back({1, 4, PrefillPolicy::Windowed, false, 100, 0});
  all.push_back({1, 4, PrefillPolicy::Exact, false, 64, 5});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Settings, KvCacheRandom, ::testing::ValuesIn(settings()), name_of);

}  // namespace
}  // namespace kv2
