// SPDX-License-Identifier: Apache-2.0
// PagePool against a model that keeps a plain list of holders per slot.
#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "kv2/error.h"

namespace kv2 {
namespace {

struct Holders {
  int owners = 0;
  bool tree = false;
};

TEST(PagePool, AgreesWithAListOfHolders) {
  constexpr int kSlots = 23;
  PagePool pool(kSlots);
  std::map<int32_t, Holders> model;  // slots in use
  std::mt19937 random(1);
  const auto any = [&](auto wanted) -> int32_t {  // a random slot in use that satisfies `wanted`, or -1
    std::vector<int32_t> fit;
    for (const auto& [slot, h] : model)
      if (wanted(h)) fit.push_back(slot);
    return fit.empty() ? -1 : fit[random() % fit.size()];
  };
  for (int i = 0; i < 20000; i++) {
    switch (random() % 5) {
      case 0:
        if (pool.n_free() > 0) {
          const int32_t slot = pool.take();
          ASSERT_TRUE(slot >= 0 && slot < kSlots && !model.contains(slot))
              << "slot " << slot << " given twice";
          model[slot] = {1, false};
        }
        break;
      case 1:
        if (const int32_t slot = any([](const Holders&) { return true; }); slot >= 0) {
          pool.share(slot);
          model[slot].owners++;
        }
        break;
      case 2:
        if (const int32_t slot = any([](const Holders& h) { return h.owners > 0; }); slot >= 0) {
          pool.drop(slot);
          model[slot].owners--;
        }
        break;
      case 3:
        if (const int32_t slot = any([](const Holders& h) { return !h.tree; }); slot >= 0) {
          pool.keep(slot);
          model[slot].tree = true;
        }
        break;
      case 4:
        if (const int32_t slot = any([](const Holders& h) { return h.tree; }); slot >= 0) {
          pool.unkeep(slot);
          model[slot].tree = false;
        }
        break;
    }
    std::erase_if(model, [](const auto& at) { return at.second.owners == 0 && !at.second.tree; });
    int idle = 0;
    for (const auto& [slot, h] : model) {
      ASSERT_EQ(pool.refs(slot), h.owners + h.tree);
      ASSERT_EQ(pool.kept(slot), h.tree);
      ASSERT_EQ(pool.idle(slot), h.tree && h.owners == 0);
      idle += h.tree && h.owners == 0;
    }
    ASSERT_EQ(pool.n_idle(), idle);
    ASSERT_EQ(pool.n_used(), static_cast<int64_t>(model.size()));
    ASSERT_EQ(pool.n_free() + pool.n_used(), pool.n_slots());
  }
}

TEST(PagePool, RefusesMisuse) {
  PagePool pool(1);
  const int32_t slot = pool.take();
  EXPECT_THROW(pool.take(), Error);
  EXPECT_THROW(pool.unkeep(slot), Error);
  pool.keep(slot);
  EXPECT_THROW(pool.keep(slot), Error);
  pool.drop(slot);
  EXPECT_THROW(pool.drop(slot), Error);  // what is left is the tree's
  pool.unkeep(slot);
  EXPECT_THROW(pool.share(slot), Error);
  EXPECT_EQ(pool.n_free(), 1);
}

}  // namespace
}  // namespace kv2
