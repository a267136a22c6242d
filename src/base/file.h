// Small file helpers: whole-file reads and writes that leave nothing half-written.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

namespace kv2 {

/// The whole file as bytes. Errors: Io; BadFile when it is larger than max_bytes.
std::string read_file(const std::string& path, size_t max_bytes);

/// Writes to `path.tmp.<pid>`, fsyncs and renames: `path` holds the old content or all of the new, never a
/// part. A symbolic link stays and what it names is replaced; a device or a pipe is written to, never
/// replaced. Errors: Io naming the path and the system's reason, or the folder where that is
/// missing; the temporary is removed.
void write_file_atomically(const std::string& path, const std::function<void(std::FILE*)>& write);
/// Throws now what write_file_atomically would throw after the work: to be asked before hours of it.
void require_writable(const std::string& path);
void write_all(std::FILE* file, std::span<const std::byte> bytes);  // throws Io on a short write

/// $XDG_CACHE_HOME/kv2 or ~/.cache/kv2 (standard locations of the platform, not configuration of kv2).
std::string user_cache_dir();
/// Makes the folders of a file in there. A folder that the user named is never made. Errors: Io.
void make_cache_folder_of(const std::string& path);

}  // namespace kv2
