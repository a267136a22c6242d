#include "base/file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

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

namespace {

[[noreturn]] void cannot_write(const std::string& path, std::string_view reason) {
  throw_error(ErrorCode::Io, "cannot write '{}': {}", path, reason);
}

/// Where the bytes go: behind symbolic links, in a folder that exists.
struct Target {
  std::string path;
  bool in_place;  // a device or a pipe: a rename would put a file in its stead
};

Target find_target(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ec;
  fs::path target(path);
  // Of a pipe's link in /proc the text names nothing that could be opened: the link itself is.
  const fs::file_status status = fs::status(target, ec);
  if (fs::is_directory(status)) cannot_write(path, std::strerror(EISDIR));
  if (fs::exists(status) && !fs::is_regular_file(status)) return {path, true};
  if (const fs::path behind = fs::canonical(target, ec); !ec) target = behind;
  const fs::path folder = target.parent_path();
  if (!folder.empty() && !fs::is_directory(folder, ec))  // made silently, a typo would never be seen
    cannot_write(path, fmt::format("there is no directory '{}'", folder.string()));
  return {target.string(), false};
}

std::string temporary_of(const Target& target) {
  return target.in_place ? target.path : target.path + ".tmp." + std::to_string(::getpid());
}

}  // namespace

void require_writable(const std::string& path) {
  const Target target = find_target(path);
  if (target.in_place) {
    if (::access(target.path.c_str(), W_OK) != 0) cannot_write(path, std::strerror(errno));
    return;
  }
  const std::string temporary = temporary_of(target);
  std::FILE* f = std::fopen(temporary.c_str(), "wb");
  if (!f) cannot_write(path, std::strerror(errno));
  std::fclose(f);
  std::remove(temporary.c_str());
}

void write_file_atomically(const std::string& path, const std::function<void(std::FILE*)>& write) {
  const Target target = find_target(path);
  const std::string temporary = temporary_of(target);
  const auto give_up = [&] {
    if (!target.in_place) std::remove(temporary.c_str());
  };
  std::FILE* f = std::fopen(temporary.c_str(), "wb");
  if (!f) cannot_write(path, std::strerror(errno));
  try {
    write(f);
  } catch (const Error& e) {
    std::fclose(f);
    give_up();
    if (e.code() == ErrorCode::Io) throw e.in(fmt::format("cannot write '{}'", path));
    throw;
  } catch (...) {
    std::fclose(f);
    give_up();
    throw;
  }
  if (std::fflush(f) != 0 || (!target.in_place && ::fsync(::fileno(f)) != 0)) {
    const int reason = errno;
    std::fclose(f);
    give_up();
    cannot_write(path, std::strerror(reason));
  }
  if (std::fclose(f) != 0 || (!target.in_place && std::rename(temporary.c_str(), target.path.c_str()) != 0)) {
    const int reason = errno;
    give_up();
    cannot_write(path, std::strerror(reason));
  }
}

void make_cache_folder_of(const std::string& path) {
  std::error_code ec;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ec);
  if (ec) cannot_write(path, ec.message());
}

std::string user_cache_dir() {
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg && *xdg) return std::string(xdg) + "/kv2";
  if (const char* home = std::getenv("HOME"); home && *home) return std::string(home) + "/.cache/kv2";
  return ".cache/kv2";
}

}  // namespace kv2
