// SPDX-License-Identifier: Apache-2.0
#include "base/cpus.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <thread>

namespace kv2 {
namespace {

/// Of cgroup v2; "max 100000" or "150000 100000". 0: none, or a form that is not known.
double cgroup_quota() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (file >> quota >> period && period > 0) return quota / period;
  return 0;
}

}  // namespace

CpuList CpuList::of(const std::vector<int>& allowed, const std::string& sys) {
  CpuList list;
  std::vector<int> others;
  std::set<std::string> seen;  // siblings have the same line: what it means does not matter
  for (const int cpu : allowed) {
    std::ifstream file(sys + "/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    std::string siblings;
    const bool first = !std::getline(file, siblings) || siblings.empty() || seen.insert(siblings).second;
    (first ? list.cpus : others).push_back(cpu);
  }
  list.n_cores = static_cast<int>(list.cpus.size());
  list.cpus.insert(list.cpus.end(), others.begin(), others.end());
  return list;
}

CpuList allowed_cpus() {
  std::vector<int> allowed;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
      if (CPU_ISSET(cpu, &set)) allowed.push_back(cpu);
  if (allowed.empty())  // more CPUs than the mask has room for
    for (unsigned cpu = 0; cpu < std::max(1u, std::thread::hardware_concurrency()); cpu++)
      allowed.push_back(static_cast<int>(cpu));
  return CpuList::of(allowed, "/sys/devices/system/cpu");
}

int usable_cores() {
  const int cores = allowed_cpus().n_cores;
  const double quota = cgroup_quota();
  return quota > 0 ? std::clamp(static_cast<int>(std::lround(quota)), 1, cores) : cores;
}

bool bind_to_cpu(int cpu) {
  cpu_set_t set;
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return ::sched_setaffinity(0, sizeof set, &set) == 0;
}

}  // namespace kv2
