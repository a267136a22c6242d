// How much memory this process may still take: the smaller of the machine's available memory and its cgroup's
// room.
#pragma once

#include <cstddef>
#include <string>

namespace kv2 {

size_t available_memory();
/// Peak resident memory of this process so far.
size_t peak_memory();
/// Resident memory of this process now.
size_t resident_memory();
/// Gives freed memory of the heap back to the system: worth its milliseconds after something large was freed
/// that had been allocated in small pieces, as a calibration is.
void trim_heap();
/// "1.25 GiB", "93.8 MiB", "512 B".
std::string format_bytes(size_t bytes);

}  // namespace kv2
