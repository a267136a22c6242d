// One persistent team of threads, the only parallelism of kv2. A loop hands out task numbers; what a task computes
// must not depend on which worker runs it or how many there are.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kv2 {

class ThreadTeam {
 public:
  /// n_threads >= 1, the caller included. 0: the cores this process may use (cgroup limit and affinity).
  explicit ThreadTeam(int n_threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  /// Runs task(index, worker) for index in [0, n_tasks); worker in [0, size()). Returns when all are done; the first
  /// exception of a task is rethrown here. One caller at a time; tasks must not call run().
  void run(int64_t n_tasks, const std::function<void(int64_t index, int worker)>& task);

 private:
  void work(int worker);
  void drain(int worker);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  uint64_t round_ = 0;      // guarded by mutex_
  int n_busy_ = 0;          // guarded by mutex_
  bool stop_ = false;       // guarded by mutex_
  std::exception_ptr failure_;  // guarded by mutex_
  const std::function<void(int64_t, int)>* task_ = nullptr;
  int64_t n_tasks_ = 0;
  std::atomic<int64_t> next_{0};
};

/// Cores this process may run on: the smaller of its affinity mask and its cgroup's CPU quota, at least 1.
int usable_cores();

}  // namespace kv2
