// SPDX-License-Identifier: Apache-2.0
// The CPUs that this process may use: its affinity mask, its cgroup's quota, and which hardware threads share
// a core.
#pragma once

#include <string>
#include <vector>

namespace kv2 {

/// One CPU of every core first, lowest numbers first, then the other hardware threads of those cores.
struct CpuList {
  std::vector<int> cpus;
  int n_cores = 0;  // how many of them are of different cores; the first of the list

  /// Of `allowed`, by `sys`/cpuN/topology/thread_siblings_list; a CPU without that file is a core of its own.
  static CpuList of(const std::vector<int>& allowed, const std::string& sys);
};
/// By the affinity mask of the calling thread. Never empty.
CpuList allowed_cpus();

/// Cores that this process may keep busy: hardware threads of a core count once (they share its units for
/// products, which is what kv2's loops fill), and a cgroup's CPU quota, rounded, is the most. At least 1.
int usable_cores();

/// Binds the calling thread to one CPU. False where the system refuses.
bool bind_to_cpu(int cpu);

}  // namespace kv2
