// SPDX-License-Identifier: Apache-2.0
// The team of threads: every task exactly once, exceptions, many short rounds, sizes 1 to 8. Run under the
// thread sanitizer it also checks that what one round writes the next may read.
#include "base/threads.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <stdexcept>
#include <string>

#include "base/cpus.h"
#include "kv2/error.h"

namespace kv2 {
namespace {

TEST(ThreadTeam, RunsEveryTaskOnceWithAValidWorker) {
  for (int size = 1; size <= 8; size++) {
    ThreadTeam team(size);
    EXPECT_EQ(team.size(), size);
    for (int n : {0, 1, 2, 3, 7, 64, 1001}) {
      std::vector<std::atomic<int>> seen(n);
      std::atomic<bool> bad_worker{false};
      team.run(n, [&](int64_t i, int worker) {
        seen[i]++;
        if (worker < 0 || worker >= size) bad_worker = true;
      });
      for (int i = 0; i < n; i++) EXPECT_EQ(seen[i], 1) << "task " << i << " of " << n << ", size " << size;
      EXPECT_FALSE(bad_worker);
    }
  }
}

// Plain (not atomic) memory carried from round to round: lost or torn rounds change the sum.
TEST(ThreadTeam, ManyRoundsSeeWhatTheLastOneWrote) {
  for (int size : {1, 2, 3, 8}) {
    ThreadTeam team(size);
    std::vector<int64_t> a(37), b(37);
    std::iota(a.begin(), a.end(), 0);
    for (int round = 0; round < 3000; round++) {
      team.run(37, [&](int64_t i, int) { b[i] = a[(i + 1) % 37] + 1; });
      a.swap(b);
    }
    for (int64_t i = 0; i < 37; i++) EXPECT_EQ(a[i], (i + 3000) % 37 + 3000);
  }
}

TEST(ThreadTeam, OneWorkerNumberIsNeverTwoThreadsAtOnce) {
  ThreadTeam team(4);
  std::vector<std::atomic<int>> busy(4);
  std::atomic<bool> clash{false};
  for (int round = 0; round < 500; round++) {
    team.run(16, [&](int64_t, int worker) {
      if (busy[worker].fetch_add(1) != 0) clash = true;
      busy[worker].fetch_sub(1);
    });
  }
  EXPECT_FALSE(clash);
}

TEST(ThreadTeam, WakesWorkersThatSleep) {
  ThreadTeam team(3);
  for (int round = 0; round < 5; round++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // far longer than workers spin
    // Three tasks that wait for each other finish only when three threads run them.
    std::atomic<int> arrived{0};
    team.run(3, [&](int64_t, int) {
      arrived++;
      while (arrived < 3) std::this_thread::yield();
    });
    EXPECT_EQ(arrived, 3);
  }
}

TEST(ThreadTeam, RethrowsAndGoesOn) {
  for (int size : {1, 2, 5}) {
    ThreadTeam team(size);
    for (int round = 0; round < 200; round++) {
      std::string text;
      try {
        team.run(50, [&](int64_t i, int) {
          if (i % 10 == 7) throw std::runtime_error("task " + std::to_string(i % 10));
        });
      } catch (const std::runtime_error& e) {
        text = e.what();
      }
      EXPECT_EQ(text, "task 7");
      std::atomic<int> n{0};
      team.run(50, [&](int64_t, int) { n++; });
      EXPECT_EQ(n, 50);
    }
  }
}

TEST(ThreadTeam, RefusesNonsense) {
  EXPECT_THROW(ThreadTeam(-1), Error);
  EXPECT_THROW(ThreadTeam(1025), Error);
  EXPECT_GE(usable_cores(), 1);
  EXPECT_EQ(ThreadTeam(0).size(), usable_cores());
}

}  // namespace
}  // namespace kv2
