// SPDX-License-Identifier: Apache-2.0
// Which CPUs are cores, on machines made of files, and where a pinned team's workers run.
#include "base/cpus.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/threads.h"
#include "kv2/error.h"

namespace kv2 {
namespace {

class Machine : public testing::Test {
 protected:
  // A folder for each test: they run side by side.
  Machine()
      : sys_(std::filesystem::path(testing::TempDir()) /
             (std::string("kv2_cpus_") + testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(sys_);
    std::filesystem::create_directories(sys_);
  }
  ~Machine() override { std::filesystem::remove_all(sys_); }
  void add(int cpu, const std::string& siblings) {
    const auto folder = sys_ / ("cpu" + std::to_string(cpu)) / "topology";
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "thread_siblings_list") << siblings << "\n";
  }
  std::filesystem::path sys_;
};

TEST_F(Machine, SiblingsFarApartCountOnceAndComeLast) {
  for (int core = 0; core < 4; core++)
    for (const int cpu : {core, core + 4}) add(cpu, std::to_string(core) + "," + std::to_string(core + 4));
  const CpuList all = CpuList::of({0, 1, 2, 3, 4, 5, 6, 7}, sys_);
  EXPECT_EQ(all.n_cores, 4);
  EXPECT_EQ(all.cpus, (std::vector{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(Machine, NeighboursThatShareACoreAreTakenApart) {
  for (int cpu = 0; cpu < 6; cpu++) add(cpu, std::to_string(cpu & ~1) + "-" + std::to_string(cpu | 1));
  const CpuList all = CpuList::of({0, 1, 2, 3, 4, 5}, sys_);
  EXPECT_EQ(all.n_cores, 3);
  EXPECT_EQ(all.cpus, (std::vector{0, 2, 4, 1, 3, 5}));
}

TEST_F(Machine, OfACoreWhoseFirstThreadIsNotAllowedTheSecondCounts) {
  for (int cpu = 0; cpu < 4; cpu++) add(cpu, std::to_string(cpu & ~1) + "-" + std::to_string(cpu | 1));
  const CpuList some = CpuList::of({1, 2, 3}, sys_);
  EXPECT_EQ(some.n_cores, 2);
  EXPECT_EQ(some.cpus, (std::vector{1, 2, 3}));
}

TEST_F(Machine, WithoutFilesEveryCpuIsACore) {
  EXPECT_EQ(CpuList::of({3, 5}, sys_).n_cores, 2);
}

TEST(Cpus, ThisProcessHasSome) {
  const CpuList cpus = allowed_cpus();
  EXPECT_GE(cpus.n_cores, 1);
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), cpus.n_cores);
}

TEST(Cpus, APinnedTeamsWorkersStayOnCpusOfTheirOwn) {
  const CpuList cpus = allowed_cpus();
  const int n = std::min<int>(4, static_cast<int>(cpus.cpus.size()));
  ThreadTeam team(n, Pinning::OneEach);
  std::vector<std::atomic<int>> wrong(n), done(n);
  for (int round = 0; round < 200; round++)
    team.run(64, [&](int64_t, int worker) {
      if (worker > 0 && ::sched_getcpu() != cpus.cpus[worker]) wrong[worker]++;
      done[worker]++;
      for (volatile int i = 0; i < 2000;) i = i + 1;
    });
  for (int w = 0; w < n; w++) EXPECT_EQ(wrong[w], 0) << "of " << done[w];
}

TEST(Cpus, MoreThreadsThanCpusCannotBePinned) {
  try {
    ThreadTeam team(static_cast<int>(allowed_cpus().cpus.size()) + 1, Pinning::OneEach);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("--pin"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace kv2
