// How much memory this process may still take: the smaller of the machine's available memory and its cgroup's
// room.
#pragma once

#include <cstddef>
#include <string>

namespace kv2 {

size_t available_memory();
/// Peak resident memory of this process so far.
size_t peak_memory();
/// "1.25 GiB", "93.8 MiB", "512 B".
std::string format_bytes(size_t bytes);

}  // namespace kv2
