#include "base/file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/check.h"

namespace kv2 {

std::string read_file(const std::string& path, size_t max_bytes) {
  std::FILE* f = std::fopen(path.c_str(), "rb");
  if (!f) throw_error(ErrorCode::Io, "cannot open {}: {}", path, std::strerror(errno));
  std::string out;
  char buffer[1 << 16];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, f)) > 0;) {
    if (out.size() + n > max_bytes) {
      std::fclose(f);
      throw_error(ErrorCode::BadFile, "{} is larger than the {} bytes allowed here", path, max_bytes);
    }
    out.append(buffer, n);
  }
  const bool failed = std::ferror(f) != 0;
  const int reason = errno;
  std::fclose(f);
  if (failed) throw_error(ErrorCode::Io, "cannot read {}: {}", path, std::strerror(reason));
  return out;
}

void write_all(std::FILE* file, std::span<const std::byte> bytes) {
  if (!bytes.empty() && std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size())
    throw_error(ErrorCode::Io, "write failed: {}", std::strerror(errno));
}

void write_file_atomically(const std::string& path, const std::function<void(std::FILE*)>& write) {
  const std::filesystem::path target(path);
  std::error_code ec;
  if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path(), ec);
  const std::string temporary = path + ".tmp." + std::to_string(::getpid());
  std::FILE* f = std::fopen(temporary.c_str(), "wb");
  if (!f) throw_error(ErrorCode::Io, "cannot write {}: {}", path, std::strerror(errno));
  try {
    write(f);
    if (std::fflush(f) != 0 || ::fsync(::fileno(f)) != 0)
      throw_error(ErrorCode::Io, "cannot write {}: {}", path, std::strerror(errno));
  } catch (...) {
    std::fclose(f);
    std::remove(temporary.c_str());
    throw;
  }
  if (std::fclose(f) != 0 || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    std::remove(temporary.c_str());
    throw_error(ErrorCode::Io, "cannot write {}: {}", path, std::strerror(reason));
  }
}

std::string user_cache_dir() {
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg && *xdg) return std::string(xdg) + "/kv2";
  if (const char* home = std::getenv("HOME"); home && *home) return std::string(home) + "/.cache/kv2";
  return ".cache/kv2";
}

}  // namespace kv2
