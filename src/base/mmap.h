// A read-only memory map of a whole file. Empty files map to an empty span.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace kv2 {

class MappedFile {
 public:
  /// Throws Error{Io} naming the path and the system's reason.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  /// Gives the memory back; what is read later is read from the file again.
  void forget() const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kv2
