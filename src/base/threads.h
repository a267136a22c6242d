// SPDX-License-Identifier: Apache-2.0
// One persistent team of threads, the only parallelism of kv2. A loop hands out task numbers; what a task
// computes must not depend on which worker runs it or how many there are.
//
// A decode step is some 300 loops of a few tens of microseconds, so workers spin for a moment before they
// sleep, and a loop never waits for a worker that has not arrived: the caller drains the tasks itself and
// closes the loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kv2 {

/// OneEach: every worker is bound to a CPU of its own, of different cores while there are any; the caller,
/// which belongs to others, stays free and finds the one that is left.
enum class Pinning : uint8_t { Off, OneEach };

class ThreadTeam {
 public:
  /// n_threads >= 1, the caller included. 0: usable_cores(). Throws BadArgument where more are to be pinned
  /// than there are CPUs.
  explicit ThreadTeam(int n_threads, Pinning pinning = Pinning::Off);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  /// Runs task(index, worker) for index in [0, n_tasks); worker in [0, size()). Returns when all are done;
  /// the first exception of a task is rethrown here. One caller at a time; tasks must not call run().
  void run(int64_t n_tasks, const std::function<void(int64_t index, int worker)>& task);

 private:
  void work(int worker);
  void drain(int worker);
  void stop_workers();

  // round_ announces a loop (workers sleep on it); open_ says whether one may be joined; inside_ counts the
  // workers that may be looking at it. A worker enters (inside_ + 1) before it asks open_, and the caller
  // closes before it asks inside_: in the single order of these atomics one of the two sees the other, so
  // task_ never changes under a worker.
  alignas(64) std::atomic<uint32_t> round_{0};
  std::atomic<bool> open_{false}, stop_{false};
  const std::function<void(int64_t, int)>* task_ = nullptr;  // written while closed and nobody is inside
  int64_t n_tasks_ = 0;                                      // the same
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint32_t> inside_{0};
  alignas(64) std::mutex failure_mutex_;
  std::exception_ptr failure_;  // guarded by failure_mutex_
  std::vector<std::thread> workers_;
};

}  // namespace kv2
