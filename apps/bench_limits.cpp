// SPDX-License-Identifier: Apache-2.0
// What the machine gives in this very call, with as many threads as the rest of the bench uses: the other
// parts are printed as shares of it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "apps/bench.h"
#include "base/threads.h"
#include "cpu/limits.h"
#include "cpu/scratch.h"
#include "ops/cases/inputs.h"
#include "ops/device_extras.h"

namespace kv2::app {
namespace {

BenchRow read_row(ThreadTeam& team, const char* level, size_t bytes_per_thread, int repeats,
                  cpu::HugePages huge_pages) {
  const int n = team.size();
  std::vector<cpu::AlignedBuffer> memory;  // in huge pages where the kernels' memory would be
  for (int i = 0; i < n; i++) {
    memory.emplace_back(bytes_per_thread, huge_pages);
    std::memset(memory.back().as<void>(), 1, bytes_per_thread);
  }
  std::vector<int32_t> sinks(static_cast<size_t>(n) * 16);
  const int rounds = static_cast<int>(std::max<size_t>(1, (size_t{64} << 20) / bytes_per_thread));
  BenchRow row{.part = "limits",
               .name = fmt::format("read {} ({} KiB a thread)", level, bytes_per_thread >> 10)};
  row.times = time_of(repeats, [&] {
    team.run(n, [&](int64_t i, int) {
      for (int r = 0; r < rounds; r++)
        cpu::read_all(memory[static_cast<size_t>(i)].as<void>(), bytes_per_thread,
                      &sinks[static_cast<size_t>(i) * 16]);
    });
  });
  row.bytes = static_cast<double>(bytes_per_thread) * rounds * n;
  return row;
}

template <class T>
BenchRow peak_row(ThreadTeam& team, const char* what, int64_t (*spin)(int64_t, T*), double Arithmetic::*kind,
                  int repeats) {
  const int n = team.size();
  std::vector<T> sinks(static_cast<size_t>(n) * 16, T{1});
  int64_t products = 0;
  BenchRow row{.part = "limits", .name = fmt::format("{} multiply-adds", what)};
  row.times = time_of(repeats, [&] {
    team.run(n, [&](int64_t i, int) {
      const int64_t done = spin(1 << 18, &sinks[static_cast<size_t>(i) * 16]);
      if (i == 0) products = done;
    });
  });
  row.operations.*kind = 2.0 * static_cast<double>(products) * n;
  return row;
}

/// Of a device with a clock: reading, copying, and what an op costs that does nothing. Others: nothing.
void device_limits(const BenchOptions& o, BenchReport& report) {
  const auto backend = open_device(o.model.device_options());
  auto* clock = dynamic_cast<DeviceClock*>(backend.get());
  if (!clock) return;
  const int repeats = std::max(9, o.repeats);
  const size_t bytes = std::min(size_t{4} << 30, free_memory(*backend) / 4) / 64 * 64;
  const cases::DeviceArray<std::byte> from(*backend, bytes), to(*backend, bytes);
  backend->copy(from.data(), to.data(), bytes);  // pages that nobody wrote may not be there
  const auto add = [&](std::string name, double moved, const std::function<void()>& ops) {
    BenchRow row{.part = "limits", .name = std::move(name)};
    row.times = time_on(*backend, repeats, ops);
    row.bytes = moved;
    report.add(row);
    return moved / row.times.best();
  };
  const double read = add(fmt::format("read memory ({} MiB)", bytes >> 20), static_cast<double>(bytes),
                          [&] { clock->read_all(from.data(), bytes); });
  report.limits.levels = {{"memory", HUGE_VAL, read}};
  add(fmt::format("copy memory ({} MiB, bytes read + written)", bytes >> 20),
      2.0 * static_cast<double>(bytes), [&] { backend->copy(to.data(), from.data(), bytes); });
  add("an op that does nothing", 0, [&] { clock->read_all(from.data(), 16); });
}

}  // namespace

void bench_limits(const BenchOptions& o, BenchReport& report) {
  if (o.model.device != "cpu") return device_limits(o, report);
  ThreadTeam team(o.model.threads, o.model.pin ? Pinning::OneEach : Pinning::Off);
  const int repeats = std::max(9, o.repeats);
  BenchLimits& l = report.limits;
  // The best of all repeats: a limit is what the machine can do, not what a neighbour leaves of it.
  const auto huge_pages = o.model.device_options().huge_pages ? cpu::HugePages::On : cpu::HugePages::Off;
  const auto read = [&](const char* level, size_t bytes, double holds) {
    const BenchRow row = read_row(team, level, bytes, repeats, huge_pages);
    report.add(row);  // before the level is a limit: nothing is a share of itself
    l.levels.push_back({level, holds, row.bytes / row.times.best()});
  };
  read("L2", size_t{512} << 10, 1 << 20);
  read("L3", size_t{6} << 20, 24 << 20);
  read("memory", size_t{256} << 20, HUGE_VAL);
  const auto peak = [&](const BenchRow& row, double Arithmetic::*kind) {
    l.peak.*kind = row.operations.*kind / row.times.best();
    if (l.peak.*kind > 0) report.add(row);  // 0: this processor has no such instruction
  };
  peak(peak_row(team, "f32", cpu::spin_f32, &Arithmetic::f32, repeats), &Arithmetic::f32);
  peak(peak_row(team, "bf16 dot", cpu::spin_bf16, &Arithmetic::bf16, repeats), &Arithmetic::bf16);
  peak(peak_row(team, "int8 dot", cpu::spin_int8, &Arithmetic::int8, repeats), &Arithmetic::int8);
}

}  // namespace kv2::app
