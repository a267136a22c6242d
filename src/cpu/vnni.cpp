// SPDX-License-Identifier: Apache-2.0
#include "cpu/vnni.h"

#include <atomic>

namespace kv2::cpu {
namespace {

std::atomic<bool>& flag() {
  static std::atomic<bool> use{processor_has_vnni()};
  return use;
}

}  // namespace

bool processor_has_vnni() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

bool use_vnni() {
  return flag().load(std::memory_order_relaxed);
}

void set_use_vnni(bool use) {
  flag().store(use && processor_has_vnni());
}

}  // namespace kv2::cpu
