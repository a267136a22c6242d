// SPDX-License-Identifier: Apache-2.0
#include "base/threads.h"

#include <chrono>

#include "base/check.h"
#include "base/cpus.h"

namespace kv2 {
namespace {

inline void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Spins until done() or for about 40 microseconds, the length of a small loop; true when done. Waking a
/// sleeping thread costs 5 to 50 microseconds, so spinning longer than that wins nothing.
template <class Done>
bool spin_until(const Done& done) {
  constexpr std::chrono::microseconds kSpin{40};
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 32; i++) {
      if (done()) return true;
      pause_cpu();
    }
  } while (std::chrono::steady_clock::now() - start < kSpin);
  return done();
}

}  // namespace

ThreadTeam::ThreadTeam(int n_threads, Pinning pinning) {
  if (n_threads == 0) n_threads = usable_cores();
  if (n_threads < 1 || n_threads > 1024)
    throw_error(ErrorCode::BadArgument, "threads must be between 1 and 1024, found {}", n_threads);
  std::vector<int> cpus;  // of each worker
  if (pinning == Pinning::OneEach) {
    cpus = allowed_cpus().cpus;
    if (n_threads > static_cast<int>(cpus.size()))
      throw_error(ErrorCode::BadArgument, "--pin: {} threads, and this process may use {} CPU{}", n_threads,
                  cpus.size(), cpus.size() == 1 ? "" : "s");
  }
  try {
    for (int i = 1; i < n_threads; i++)
      workers_.emplace_back([this, i, cpu = cpus.empty() ? -1 : cpus[i]] {
        if (cpu >= 0) bind_to_cpu(cpu);  // refused: not pinned, and nothing else is wrong
        work(i);
      });
  } catch (...) {  // the system refused a thread: those that exist must end before the team's memory goes
    stop_workers();
    throw;
  }
}

ThreadTeam::~ThreadTeam() {
  stop_workers();
}

void ThreadTeam::stop_workers() {
  stop_.store(true);
  round_.fetch_add(1);
  round_.notify_all();
  for (auto& w : workers_) w.join();
}

void ThreadTeam::drain(int worker) {
  try {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n_tasks_;) (*task_)(i, worker);
  } catch (...) {
    next_.store(n_tasks_, std::memory_order_relaxed);
    std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
}

void ThreadTeam::work(int worker) {
  uint32_t seen = 0;
  for (;;) {
    if (!spin_until([&] { return round_.load(std::memory_order_relaxed) != seen; })) round_.wait(seen);
    seen = round_.load();
    if (stop_.load()) return;
    inside_.fetch_add(1);
    if (open_.load()) drain(worker);
    if (inside_.fetch_sub(1) == 1) inside_.notify_all();
  }
}

void ThreadTeam::run(int64_t n_tasks, const std::function<void(int64_t, int)>& task) {
  if (n_tasks <= 0) return;
  if (workers_.empty() || n_tasks == 1) {
    for (int64_t i = 0; i < n_tasks; i++) task(i, 0);
    return;
  }
  task_ = &task;
  n_tasks_ = n_tasks;
  next_.store(0, std::memory_order_relaxed);
  open_.store(true);
  round_.fetch_add(1);
  round_.notify_all();  // no system call while nobody sleeps
  drain(0);
  open_.store(false);
  for (;;) {
    if (spin_until([&] { return inside_.load() == 0; })) break;
    if (const uint32_t inside = inside_.load(); inside != 0) inside_.wait(inside);
  }
  std::exception_ptr failure;
  {
    std::lock_guard lock(failure_mutex_);
    std::swap(failure, failure_);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace kv2
