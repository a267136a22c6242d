// SPDX-License-Identifier: Apache-2.0
// What `kv2 plan` says against what the allocator holds after a model was loaded, a cache made, a prompt read
// and tokens decoded. A program of its own: nothing else allocates here.
#include <malloc.h>

#include <cmath>

#include "cache/cache_plan.h"
#include "engine/device.h"
#include "sanitized.h"
#include "support.h"

namespace kv2::test {
namespace {

double allocated_bytes() {
  const auto info = mallinfo2();
  return static_cast<double>(info.uordblks + info.hblkhd);
}

class Plan : public testing::TestWithParam<std::string> {};

TEST_P(Plan, EqualsWhatIsAllocatedWithinOnePercent) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's allocator does not count";
  const std::string path = write_random_model(
      {.n_layers = 4, .hidden = 512, .n_heads = 8, .n_kv_heads = 2, .intermediate = 1536, .vocab = 2048});
  const CacheSpec spec = CacheSpec::parse(GetParam());
  const CacheCapacity capacity{.context_tokens = 6000, .n_sequences = 3, .chunk_tokens = 256};
  const std::vector<int32_t> tokens = random_tokens(600, 2048, 5);
  const auto run = [&](double* found, size_t* model_bytes) {
    const double before = allocated_bytes();
    // Chunks of huge pages reserve more than they use: the end of the last one is never touched.
    const auto backend = open_device({.n_threads = 2, .huge_pages = false});
    const auto model = Model::load(path, *backend, capacity.chunk_tokens);
    Runner runner(*model, spec, capacity);
    const SequenceId sequence = runner.open();
    runner.feed(sequence, std::span(tokens).first(590), capacity.chunk_tokens, 0);
    for (int64_t i = 590; i < 600; i++) runner.feed(sequence, std::span(tokens).subspan(i, 1), 1, 0);
    *found = allocated_bytes() - before;
    const ModelPlan plan = plan_model(model->file(), *backend, capacity.chunk_tokens);
    *model_bytes = plan.weight_bytes + plan.scratch_bytes;
    return plan_cache(spec, model->config().kv_shape(), capacity).total_bytes();
  };
  double found = 0;
  size_t model_bytes = 0;
  run(&found, &model_bytes);  // what libraries keep for the process (generated code) is not the model's
  const size_t cache_bytes = run(&found, &model_bytes);
  const double planned = static_cast<double>(model_bytes + cache_bytes);
  EXPECT_NEAR(found / planned, 1, 0.01) << "planned " << model_bytes << " for the model and " << cache_bytes
                                        << " for the cache, found " << found;
}

INSTANTIATE_TEST_SUITE_P(Methods, Plan, testing::Values("bf16", "naive2", "quarot2", "omni2"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kv2::test
