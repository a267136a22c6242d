#include "base/memory.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

namespace kv2 {
namespace {

constexpr size_t kUnknown = std::numeric_limits<size_t>::max();

size_t read_number(const char* path) {  // "max" and unreadable files count as no limit
  std::ifstream file(path);
  size_t n = 0;
  return file >> n ? n : kUnknown;
}

size_t machine_available() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  for (size_t kib = 0; file >> key >> kib; std::getline(file, unit))
    if (key == "MemAvailable:") return kib * 1024;
  return kUnknown;
}

}  // namespace

size_t available_memory() {
  size_t room = machine_available();
  const size_t limit = read_number("/sys/fs/cgroup/memory.max"),
               used = read_number("/sys/fs/cgroup/memory.current");
  if (limit != kUnknown && used != kUnknown) room = std::min(room, limit > used ? limit - used : 0);
  return room;
}

size_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) * 1024;
}

size_t resident_memory() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

void trim_heap() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

std::string format_bytes(size_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double x = static_cast<double>(bytes);
  int u = 0;
  while (x >= 1024 && u < 4) x /= 1024, u++;
  if (u == 0) return fmt::format("{} B", bytes);
  const int digits = x < 10 ? 2 : 1;
  return fmt::format("{:.{}f} {}", x, x < 100 ? digits : 0, units[u]);
}

}  // namespace kv2
