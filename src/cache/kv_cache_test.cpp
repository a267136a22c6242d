// SPDX-License-Identifier: Apache-2.0
// KvCache, what can be said in numbers: bytes, transforms, coders, forks, prefixes, refusals. Random
// schedules are in kv_cache_random_test.cpp.
#include "cache/kv_cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "cache/kv_cache_world.h"

namespace kv2 {
namespace {

CacheSpec int2_spec(PrefillPolicy prefill = PrefillPolicy::Windowed) {
  CacheSpec spec = CacheSpec::parse("naive2");
  spec.prefill = prefill;
  return spec;
}

std::vector<int32_t> text(size_t n, int32_t first = 0) {
  std::vector<int32_t> tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Transform random_transform(const KvShape& shape, bool mean, std::mt19937& random) {
  std::normal_distribution<float> normal(0.5f, 1.0f);
  const auto numbers = [&](size_t n) {
    std::vector<float> v(n);
    for (float& x : v) x = normal(random);
    return v;
  };
  const size_t width = static_cast<size_t>(shape.n_kv_heads) * shape.head_dim;
  return {shape.n_kv_heads, shape.head_dim, numbers(width * shape.head_dim), numbers(width * shape.head_dim),
          mean ? numbers(width) : std::vector<float>{}};
}

/// Opens a sequence with this prompt, forwards what the tree does not have, in whole chunks; returns the hit.
int64_t feed(World& world, Talk& talk, std::vector<int32_t> prompt) {
  talk.id = world.cache.open(talk.salt).value();
  talk.tokens = std::move(prompt);
  talk.prompt = static_cast<int64_t>(talk.tokens.size());
  talk.n = world.cache.attach_prefix(talk.id, talk.tokens);
  const int64_t hit = talk.n;
  world.cache.remember_prefix(talk.id, talk.tokens);
  while (talk.n < talk.prompt && !::testing::Test::HasFatalFailure())
    world.forward(
        {{&talk, static_cast<int>(std::min<int64_t>(world.capacity.chunk_tokens, talk.prompt - talk.n))}});
  return hit;
}

std::string error_of(const std::function<void()>& action, ErrorCode code) {
  try {
    action();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(code)) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing thrown";
  return {};
}

TEST(KvCacheMemory, PlanEqualsWhatIsAllocated) {
  std::mt19937 random(5);
  for (const int head_dim : {16, 64, 128}) {
    const KvShape shape{.n_layers = 3, .n_heads = 4, .n_kv_heads = 2, .head_dim = head_dim};
    for (const TransformKind kind :
         {TransformKind::Identity, TransformKind::Hadamard, TransformKind::Calibrated}) {
      const CacheSpec spec = CacheSpec::parse(kind == TransformKind::Identity   ? "naive2"
                                              : kind == TransformKind::Hadamard ? "quarot2"
                                                                                : "oscar2");
      ASSERT_EQ(spec.method.transform, kind);
      std::vector<LayerTransforms> transforms;
      for (int layer = 0; layer < shape.n_layers && kind != TransformKind::Identity; layer++) {
        const Transform h = hadamard_transform(shape.n_kv_heads, head_dim);
        transforms.push_back(kind == TransformKind::Hadamard
                                 ? LayerTransforms{h, h}
                                 : LayerTransforms{random_transform(shape, false, random),
                                                   random_transform(shape, false, random)});
      }
      const CacheCapacity capacity{
          .context_tokens = 3000, .n_sequences = 2, .chunk_tokens = 100, .prefix_full_pages = 1};
      FakeBackend backend;
      {
        const KvCache cache(backend, spec, shape, capacity, transforms, {});
        EXPECT_EQ(backend.live_bytes, cache.plan().total_bytes());
        EXPECT_EQ(backend.live_bytes, plan_cache(spec, shape, capacity).total_bytes());
      }
      EXPECT_EQ(backend.live_bytes, 0u);
    }
  }
}

TEST(KvCacheMemory, TransformsArriveWithTheirMeans) {
  std::mt19937 random(6);
  const KvShape shape{.n_layers = 2, .n_heads = 6, .n_kv_heads = 3, .head_dim = 20};
  std::vector<LayerTransforms> layers(2);
  layers[0] = {random_transform(shape, true, random), random_transform(shape, false, random)};
  layers[1].v = layers[0].k;  // k: identity
  layers[1].v.mean.clear();
  FakeBackend backend;
  const KvCache cache(backend, int2_spec(), shape, {.context_tokens = 100}, layers, {});
  EXPECT_EQ(backend.live_bytes, cache.plan().total_bytes());
  const auto same = [](const float* device, const std::vector<float>& host) {
    return host.empty() ? device == nullptr : device && std::equal(host.begin(), host.end(), device);
  };
  for (int layer = 0; layer < 2; layer++) {
    const KvCache::DeviceTransform t = cache.transforms(layer);
    EXPECT_TRUE(same(t.k_encode, layers[layer].k.encode) && same(t.k_decode, layers[layer].k.decode));
    EXPECT_TRUE(same(t.v_encode, layers[layer].v.encode) && same(t.v_decode, layers[layer].v.decode));
    EXPECT_TRUE(same(t.k_mean, layers[layer].k.mean) && same(t.v_mean, layers[layer].v.mean));
  }
  EXPECT_EQ(cache.transforms(1).v_encode, cache.transforms(0).k_encode) << "equal matrices are stored once";
  EXPECT_FALSE(cache.transforms(0).k_rotates || cache.transforms(1).k_rotates);
  const Transform rotation = signed_hadamard_transform(shape.n_kv_heads, shape.head_dim);
  layers[0].k = rotation;
  const KvCache rotated(backend, int2_spec(), shape, {.context_tokens = 100}, layers, {});
  EXPECT_TRUE(rotated.transforms(0).k_rotates && !rotated.transforms(1).k_rotates);
  const KvCache plain(backend, int2_spec(), shape, {.context_tokens = 100}, {}, {});
  EXPECT_EQ(plain.transforms(1).k_encode, nullptr);
}

TEST(KvCacheMemory, OneLineWhenTheMachineIsTooSmallAndNothingIsLeft) {
  FakeBackend backend;
  const CacheCapacity capacity{.context_tokens = 100000, .n_sequences = 3};
  const size_t total = plan_cache(int2_spec(), World::kShape, capacity).total_bytes();
  for (const size_t limit : {size_t{0}, total / 2, total - 1}) {
    backend.limit = limit;
    const std::string line = error_of([&] { KvCache(backend, int2_spec(), World::kShape, capacity, {}, {}); },
                                      ErrorCode::OutOfMemory);
    EXPECT_NE(line.find("naive2 for 3 sequences of 100000 tokens"), std::string::npos) << line;
    EXPECT_EQ(backend.live_bytes, 0u);
  }
  backend.limit = total;
  EXPECT_NO_THROW(KvCache(backend, int2_spec(), World::kShape, capacity, {}, {}));
}

TEST(KvCacheMemory, UsedBytesInDecodeAreThePlans) {
  for (const bool quantized : {true, false}) {
    CacheSpec spec = quantized ? int2_spec() : CacheSpec{};
    World world(spec, {.context_tokens = 1000, .chunk_tokens = 1});
    const SequenceId id = world.cache.open().value();
    for (int64_t n = 1; n <= 1000; n++) {
      ASSERT_TRUE(world.cache.reserve(id, 1));
      const Slice slice{.sequence = id, .n_rows = 1};
      const CacheStep step = world.cache.begin({&slice, 1});
      ASSERT_EQ(world.cache.used_bytes() + pages_of(n) * 8, world.cache.plan().bytes_for(n))
          << n << " tokens";
      world.cache.commit({&slice, 1});
    }
  }
}

TEST(KvCacheMemory, CodersHaveTheMethodsGroupAndTheLayersClip) {
  FakeBackend backend;
  const KvShape shape{.n_layers = 2, .n_heads = 2, .n_kv_heads = 1, .head_dim = 128};
  CacheSpec spec = int2_spec();
  spec.method.k.group = spec.method.v.group = 32;
  spec.method.clip_k = std::nullopt;
  spec.method.clip_v = 0.92f;
  const KvCache cache(backend, spec, shape, {.context_tokens = 64}, {}, {{0.5f, 0.6f}, {1.0f, 0.7f}});
  EXPECT_EQ(cache.coder_k(0).group, 32);
  EXPECT_EQ(cache.coder_k(0).clip_index, 64);
  EXPECT_EQ(cache.coder_k(1).clip_index, -1);
  EXPECT_EQ(cache.coder_v(0).clip_index, clip_index(0.92f, 128));
  EXPECT_EQ(cache.coder_v(0).clip_index, 117);
  const KvCache without(backend, spec, shape, {.context_tokens = 64}, {}, {});
  EXPECT_EQ(without.coder_k(0).clip_index, -1);
}

FeedbackFactors random_factors(const KvShape& shape, int group, std::mt19937& random) {
  std::normal_distribution<float> normal(0.5f, 1.0f);
  FeedbackFactors out;
  const size_t width = static_cast<size_t>(shape.n_kv_heads) * shape.head_dim;
  out.f.resize(width * shape.head_dim);
  out.weight.resize(width);
  out.ones.resize(width * (shape.head_dim / group));
  for (auto* v : {&out.f, &out.weight, &out.ones})
    for (float& x : *v) x = normal(random);
  return out;
}

TEST(KvCacheMemory, CoderTablesArriveAtTheirLayerAndSide) {
  std::mt19937 random(8);
  const KvShape shape{.n_layers = 3, .n_heads = 6, .n_kv_heads = 3, .head_dim = 20};
  for (const char* method : {"kv2:rotation=u,centre=off", "kv2:rotation=u,centre=off,feedback=k",
                             "kv2:rotation=u,centre=off,feedback=v,group=4"}) {
    const CacheSpec spec = CacheSpec::parse(method);
    const int group = spec.method.k.group ? spec.method.k.group : default_group(shape.head_dim);
    FittedMethod fitted;
    for (int layer = 0; layer < shape.n_layers; layer++) {
      fitted.transforms.push_back(
          {random_transform(shape, false, random), random_transform(shape, false, random)});
      LayerFactors& f = fitted.factors.emplace_back();
      if (spec.method.coder_k() == CoderKind::Feedback) f.k = random_factors(shape, group, random);
      if (spec.method.coder_v() == CoderKind::Feedback) f.v = random_factors(shape, group, random);
      fitted.clips.emplace_back(0.5f, 0.5f);
    }
    FakeBackend backend;
    const KvCache cache(backend, spec, shape, {.context_tokens = 1000}, fitted);
    EXPECT_EQ(backend.live_bytes, cache.plan().total_bytes());
    EXPECT_EQ(backend.live_bytes, plan_cache(spec, shape, {.context_tokens = 1000}).total_bytes());
    const auto expect_tables = [&](const Coder& coder, const FeedbackFactors& want) {
      EXPECT_EQ(coder.group, group);
      if (want.empty()) {
        EXPECT_EQ(coder.kind, CoderKind::Round);
        EXPECT_EQ(coder.clip_index, 10);
        EXPECT_EQ(coder.tables.f, nullptr);
        return;
      }
      EXPECT_EQ(coder.kind, CoderKind::Feedback);
      EXPECT_EQ(coder.search.n_steps, 1);  // by the bits, 2
      EXPECT_EQ(coder.search.steps[0], 1.2f);
      EXPECT_EQ(coder.search.refits, 1);
      for (const auto& [values, at] : {std::pair{&want.f, coder.tables.f},
                                       {&want.weight, coder.tables.weight},
                                       {&want.ones, coder.tables.ones}}) {
        ASSERT_NE(at, nullptr);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % 64, reinterpret_cast<uintptr_t>(coder.tables.f) % 64);
        EXPECT_TRUE(std::equal(values->begin(), values->end(), at));
      }
    };
    for (int layer = 0; layer < shape.n_layers; layer++) {
      expect_tables(cache.coder_k(layer), fitted.factors[layer].k);
      expect_tables(cache.coder_v(layer), fitted.factors[layer].v);
    }
    fitted.factors.pop_back();
    EXPECT_THROW(KvCache(backend, spec, shape, {.context_tokens = 1000}, fitted), Error)
        << "a layer is missing";
  }
}

// A change here changes bytes of pages: CacheSpec::hash() needs another number then.
TEST(KvCacheMemory, StepsThatAMethodLeavesOpenGoByTheBits) {
  std::mt19937 random(9);
  const KvShape shape{.n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .head_dim = 16};
  for (const int bits : {1, 2, 3, 4}) {
    const CacheSpec spec =
        CacheSpec::parse(fmt::format("kv2:rotation=u,centre=off,bits-k={},bits-v={}", bits, bits));
    FittedMethod fitted;
    fitted.transforms.push_back(
        {random_transform(shape, false, random), random_transform(shape, false, random)});
    fitted.factors.push_back({random_factors(shape, 16, random), random_factors(shape, 16, random)});
    fitted.clips.emplace_back(1.0f, 1.0f);
    FakeBackend backend;
    const KvCache cache(backend, spec, shape, {.context_tokens = 1000}, fitted);
    for (const Coder& coder : {cache.coder_k(0), cache.coder_v(0)}) {
      ASSERT_EQ(coder.kind, CoderKind::Feedback);
      EXPECT_EQ(coder.search.refits, 1);
      const std::vector<float> steps(coder.search.steps, coder.search.steps + coder.search.n_steps);
      EXPECT_EQ(steps, bits < 4 ? std::vector{1.2f} : (std::vector{1.0f, 1.1f})) << bits << " bits";
    }
  }
}

TEST(KvCacheFork, SharesCompletePagesAndCopiesTheUnfinishedOne) {
  for (const int n : {1, 63, 64, 65, 640, 700}) {
    World world(int2_spec(), {.context_tokens = 1000, .n_sequences = 3, .chunk_tokens = 100});
    Talk a;
    feed(world, a, text(n));
    const size_t before = world.cache.used_bytes();
    Talk b = a;
    b.id = world.cache.fork(a.id).value();
    world.check_at_rest(b);
    const size_t more = n % 64 ? world.cache.plan().layout.full_page_bytes() : 0;
    EXPECT_EQ(world.cache.used_bytes(), before + more);
    for (int i = 0; i < 300; i++) {  // apart from here
      a.tokens.push_back(1000 + i);
      b.tokens.push_back(2000 + i);
    }
    for (int i = 0; i < 3 && !HasFatalFailure(); i++) world.forward({{&a, 100}, {&b, 99}});
    world.cache.close(a.id);
    world.forward({{&b, 3}});
    world.cache.close(b.id);
    EXPECT_EQ(world.cache.used_bytes(), 0u);
  }
}

TEST(KvCachePrefix, APromptBranchesOffAnywhereWhileFullFormsAreKept) {
  for (const size_t common : {64, 65, 300, 640, 777, 1280, 1300}) {
    World world(int2_spec(),
                {.context_tokens = 2000, .n_sequences = 2, .chunk_tokens = 512, .prefix_full_pages = 40});
    Talk a, b;
    EXPECT_EQ(feed(world, a, text(1300)), 0);
    if (common % 2) world.cache.close(a.id);  // alive or not
    std::vector<int32_t> prompt = text(common);
    prompt.insert(prompt.end(), 90, -5);
    EXPECT_EQ(feed(world, b, prompt), static_cast<int64_t>(common / 64 * 64));
    for (int i = 0; i < 70; i++) b.tokens.push_back(i);
    for (int i = 0; i < 70 && !HasFatalFailure(); i++) world.forward({{&b, 1}});
  }
}

TEST(KvCachePrefix, TheSamePromptAgainLeavesATokenToForward) {
  for (const int64_t n : {64, 65, 128, 1279, 1280, 1281}) {
    World world(int2_spec(),
                {.context_tokens = 2000, .n_sequences = 2, .chunk_tokens = 512, .prefix_full_pages = 40});
    Talk a, b;
    feed(world, a, text(n));
    EXPECT_EQ(feed(world, b, text(n)), (n - 1) / 64 * 64);
  }
}

TEST(KvCachePrefix, WithoutFullFormsAShorterPrefixIsUsed) {
  World world(int2_spec(),
              {.context_tokens = 2000, .n_sequences = 2, .chunk_tokens = 64, .prefix_full_pages = 0});
  Talk a, b, c;
  feed(world, a, text(1300));
  Talk other;
  feed(world, other, text(1300, 5000));  // both sequences run: no page is to spare for the tree
  world.cache.close(other.id);
  std::vector<int32_t> early = text(700);
  early.insert(early.end(), 10, -5);
  // Page 10 would be next; of pages 6..9 no full form is left anywhere, of the sink it is.
  EXPECT_EQ(feed(world, b, early), 64);
  world.cache.close(b.id);
  std::vector<int32_t> late = text(1300);
  late.insert(late.end(), 10, -5);
  EXPECT_EQ(feed(world, c, late), 1280);  // these the running sequence holds
}

TEST(KvCachePrefix, SharedPagesExistOnce) {
  World world(int2_spec(),
              {.context_tokens = 2000, .n_sequences = 2, .chunk_tokens = 512, .prefix_full_pages = 40});
  Talk a, b;
  feed(world, a, text(1290));
  const size_t before = world.cache.used_bytes();
  const int64_t demoted = world.backend.n_demoted;
  EXPECT_EQ(feed(world, b, text(1285)), 1280);
  EXPECT_EQ(world.cache.used_bytes(), before + world.cache.plan().layout.full_page_bytes());
  EXPECT_EQ(world.backend.n_demoted, demoted);
  for (int i = 0; i < 200; i++) {
    a.tokens.push_back(7);
    b.tokens.push_back(8);
  }
  world.forward({{&a, 200}});
  const int64_t once = world.backend.n_demoted;
  EXPECT_EQ(once, demoted + 3);
  world.forward({{&b, 200}});  // its pages 16 to 18 are shared with a, whose codes are there already
  EXPECT_EQ(world.backend.n_demoted, once);
}

TEST(KvCachePrefix, TenantsShareNothing) {
  World world(int2_spec(),
              {.context_tokens = 2000, .n_sequences = 3, .chunk_tokens = 512, .prefix_full_pages = 60});
  Talk a, b, c;
  b.salt = c.salt = 77;
  feed(world, a, text(1000));
  EXPECT_EQ(feed(world, b, text(1000)), 0);
  EXPECT_EQ(feed(world, c, text(1000)), 960);
}

TEST(KvCachePrefix, ExactRemembersThePromptAlone) {
  World world(int2_spec(PrefillPolicy::Exact),
              {.context_tokens = 2000, .n_sequences = 2, .chunk_tokens = 512, .prefix_full_pages = 40});
  Talk a, b;
  feed(world, a, text(700));
  for (int i = 700; i < 1000; i++) a.tokens.push_back(i);
  world.forward({{&a, 1}});
  world.forward({{&a, 299}});
  world.cache.remember_prefix(a.id, a.tokens);
  EXPECT_EQ(feed(world, b, text(1000)), 640);
}

TEST(KvCacheRefusals, RoomAndContext) {
  World world(int2_spec(), {.context_tokens = 100, .n_sequences = 2, .chunk_tokens = 64});
  const SequenceId a = world.cache.open().value(), b = world.cache.open().value();
  EXPECT_FALSE(world.cache.open());
  EXPECT_FALSE(world.cache.fork(a));
  EXPECT_TRUE(world.cache.reserve(a, 100));
  const std::string line = error_of([&] { (void)world.cache.reserve(a, 101); }, ErrorCode::BadArgument);
  EXPECT_NE(line.find("100"), std::string::npos) << line;
  world.cache.close(b);
  EXPECT_TRUE(world.cache.fork(a));
}

TEST(KvCacheRefusals, BugsOfTheCaller) {
  World world(int2_spec(), {.context_tokens = 1000, .n_sequences = 2, .chunk_tokens = 64});
  const SequenceId a = world.cache.open().value();
  const auto begin = [&](Slice slice) { return [&world, slice] { (void)world.cache.begin({&slice, 1}); }; };
  error_of(begin({.sequence = a, .n_rows = 1}), ErrorCode::Bug);  // not reserved
  ASSERT_TRUE(world.cache.reserve(a, 200));
  error_of(begin({.sequence = a, .n_rows = 65}), ErrorCode::Bug);  // more than a chunk
  error_of(begin({.sequence = a, .n_rows = 0}), ErrorCode::Bug);
  error_of(begin({.sequence = a, .n_rows = 8, .full_until = 8}), ErrorCode::Bug);  // windowed
  error_of(begin({.sequence = static_cast<SequenceId>(1), .n_rows = 1}), ErrorCode::Bug);
  error_of(begin({.sequence = static_cast<SequenceId>(-1), .n_rows = 1}), ErrorCode::Bug);
  const Slice slice{.sequence = a, .n_rows = 8}, other{.sequence = a, .n_rows = 9};
  error_of([&] { world.cache.commit({&slice, 1}); }, ErrorCode::Bug);
  (void)world.cache.begin({&slice, 1});
  error_of(begin(slice), ErrorCode::Bug);
  error_of([&] { world.cache.commit({&other, 1}); }, ErrorCode::Bug);
  world.cache.close(a);  // also in the middle of a forward that failed
  EXPECT_EQ(world.cache.used_bytes(), 0u);
}

TEST(KvCacheRefusals, ALongerPromptAfterItsPagesWerePacked) {
  World world(int2_spec(PrefillPolicy::Exact), {.context_tokens = 2000, .chunk_tokens = 512});
  Talk a;
  feed(world, a, text(1000));
  for (int i = 0; i < 500; i++) a.tokens.push_back(i);
  world.forward({{&a, 100}});
  const Slice slice{.sequence = a.id, .n_rows = 10, .full_until = 1110};
  ASSERT_TRUE(world.cache.reserve(a.id, 10));
  error_of([&] { (void)world.cache.begin({&slice, 1}); }, ErrorCode::Bug);
}

}  // namespace
}  // namespace kv2
