#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "base/check.h"

namespace kv2 {

int usable_cores() {
  int n = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) n = CPU_COUNT(&set);
  std::ifstream file("/sys/fs/cgroup/cpu.max");  // "max 100000" or "150000 100000"
  std::string quota;
  double period = 0;
  if (file >> quota >> period && quota != "max" && period > 0) {
    try {
      n = std::min(n, std::max(1, static_cast<int>(std::floor(std::stod(quota) / period + 0.5))));
    } catch (const std::exception&) {  // an unknown format is no reason to fail
    }
  }
  return std::max(1, n);
}

ThreadTeam::ThreadTeam(int n_threads) {
  if (n_threads == 0) n_threads = usable_cores();
  if (n_threads < 1 || n_threads > 1024)
    throw_error(ErrorCode::BadArgument, "threads must be between 1 and 1024, found {}", n_threads);
  for (int i = 1; i < n_threads; i++) workers_.emplace_back([this, i] { work(i); });
}

ThreadTeam::~ThreadTeam() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& w : workers_) w.join();
}

void ThreadTeam::drain(int worker) {
  try {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n_tasks_;) (*task_)(i, worker);
  } catch (...) {
    next_.store(n_tasks_, std::memory_order_relaxed);
    std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
}

void ThreadTeam::work(int worker) {
  uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
    }
    drain(worker);
    std::lock_guard lock(mutex_);
    if (--n_busy_ == 0) done_.notify_one();
  }
}

void ThreadTeam::run(int64_t n_tasks, const std::function<void(int64_t, int)>& task) {
  if (n_tasks <= 0) return;
  if (workers_.empty() || n_tasks == 1) {
    for (int64_t i = 0; i < n_tasks; i++) task(i, 0);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    task_ = &task;
    n_tasks_ = n_tasks;
    next_.store(0, std::memory_order_relaxed);
    n_busy_ = static_cast<int>(workers_.size());
    failure_ = nullptr;
    round_++;
  }
  wake_.notify_all();
  drain(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return n_busy_ == 0; });
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace kv2
