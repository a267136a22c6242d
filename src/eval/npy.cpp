// SPDX-License-Identifier: Apache-2.0
#include "eval/npy.h"

#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>

#include "base/check.h"
#include "base/file.h"
#include "base/mmap.h"

namespace kv2 {
namespace {

static_assert(std::endian::native == std::endian::little, ".npy data is copied as it lies in memory");
constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kMaxHeader = 1 << 16;  // NumPy itself refuses headers of more than 10,000 bytes

/// Reads the header's dictionary, a Python literal: {'descr': '<i4', 'fortran_order': False, 'shape': (3,),
/// }.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  struct Header {
    std::string type;
    bool fortran = false;
    std::vector<int64_t> shape;
  };

  Header parse() {
    Header out;
    bool has_type = false, has_order = false, has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      bool* seen = key == "descr"           ? &has_type
                   : key == "fortran_order" ? &has_order
                   : key == "shape"         ? &has_shape
                                            : nullptr;
      if (!seen || *seen) fail(fmt::format("key '{}' is unknown or there twice", key));
      *seen = true;
      if (seen == &has_type) out.type = string();
      if (seen == &has_order) out.fortran = boolean();
      if (seen == &has_shape) out.shape = tuple();
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) fail("bytes after the dictionary");
    if (!has_type || !has_order || !has_shape) fail("descr, fortran_order or shape is missing");
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& what) {
    throw_error(ErrorCode::BadFile, "{}: .npy header, at byte {}: {}", name_, at_, what);
  }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) at_++;
  }
  bool accept(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    at_++;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(fmt::format("'{}' expected", c));
  }
  std::string string() {
    skip_space();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') fail("a quoted string expected (structured types are not supported)");
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos || end - at_ > 64) fail("a string without its end");
    std::string out(text_.substr(at_ + 1, end - at_ - 1));
    for (const char c : out)
      if (c < ' ' || c > '~') fail("a string with unprintable bytes");
    at_ = end + 1;
    return out;
  }
  bool boolean() {
    skip_space();
    for (const auto& [word, value] :
         {std::pair{std::string_view("True"), true}, {std::string_view("False"), false}})
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return value;
      }
    fail("True or False expected");
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> out;
    expect('(');
    while (!accept(')')) {
      out.push_back(number());
      if (out.size() > 32) fail("more than 32 dimensions");
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return out;
  }
  int64_t number() {
    skip_space();
    const size_t begin = at_;
    int64_t out = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; at_++) {
      if (out > (std::numeric_limits<int64_t>::max() - 9) / 10) fail("a dimension past 64 bits");
      out = out * 10 + (text_[at_] - '0');
    }
    if (at_ == begin) fail("a number expected");
    return out;
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
};

template <class T>
std::vector<int32_t> convert(std::span<const std::byte> data, const std::string& name) {
  std::vector<int32_t> out(data.size() / sizeof(T));
  for (size_t i = 0; i < out.size(); i++) {
    T value;
    std::memcpy(&value, data.data() + i * sizeof(T), sizeof(T));
    if constexpr (sizeof(T) > 4)
      if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max())
        throw_error(ErrorCode::BadFile, "{}: value {} at index {} is no token id", name, value, i);
    out[i] = static_cast<int32_t>(value);
  }
  return out;
}

size_t element_bytes(const std::string& type) {
  return type == "<i4" ? 4 : type == "<i8" ? 8 : type == "<u2" ? 2 : 0;
}

}  // namespace

std::vector<int32_t> parse_npy_tokens(std::span<const std::byte> bytes, const std::string& name) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.substr(0, kMagic.size()) != kMagic)
    throw_error(ErrorCode::BadFile, "{}: not a .npy file (its first bytes are not \\x93NUMPY)", name);
  if (bytes.size() < 10) throw_error(ErrorCode::BadFile, "{}: .npy file ends inside its header", name);
  const int major = static_cast<uint8_t>(bytes[6]), minor = static_cast<uint8_t>(bytes[7]);
  if (major < 1 || major > 3 || minor != 0)
    throw_error(ErrorCode::Unsupported, "{}: .npy format version {}.{}, supported are 1.0, 2.0 and 3.0", name,
                major, minor);
  const size_t length_bytes = major == 1 ? 2 : 4, begin = 8 + length_bytes;
  if (bytes.size() < begin) throw_error(ErrorCode::BadFile, "{}: .npy file ends inside its header", name);
  size_t length = 0;
  for (size_t i = length_bytes; i-- > 0;) length = length << 8 | static_cast<uint8_t>(bytes[8 + i]);
  if (length > kMaxHeader || length > bytes.size() - begin)
    throw_error(ErrorCode::BadFile, "{}: .npy header of {} bytes, but {} follow and {} are allowed", name,
                length, bytes.size() - begin, kMaxHeader);
  const auto header = HeaderParser(text.substr(begin, length), name).parse();
  const size_t element = element_bytes(header.type);
  if (element == 0)
    throw_error(
        ErrorCode::Unsupported,
        "{}: values of type '{}', supported are little-endian int32 (<i4), int64 (<i8) and uint16 (<u2)",
        name, header.type);
  if (header.fortran || header.shape.size() != 1)
    throw_error(ErrorCode::Unsupported,
                "{}: an array of {} dimensions{}, supported is one dimension in C order", name,
                header.shape.size(), header.fortran ? " in Fortran order" : "");
  const std::span<const std::byte> data = bytes.subspan(begin + length);
  if (data.size() % element != 0 || static_cast<uint64_t>(header.shape[0]) != data.size() / element)
    throw_error(ErrorCode::BadFile, "{}: {} values of {} bytes expected, the file holds {} bytes of data",
                name, header.shape[0], element, data.size());
  return element == 4   ? convert<int32_t>(data, name)
         : element == 8 ? convert<int64_t>(data, name)
                        : convert<uint16_t>(data, name);
}

std::vector<int32_t> read_npy_tokens(const std::string& path) {
  const MappedFile file(path);
  return parse_npy_tokens(file.bytes(), path);
}

namespace {

/// Magic, version 1.0 and header: data begin at a multiple of 64, as NumPy writes them.
std::string npy_start(std::string header) {
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  std::string start(kMagic);
  start += {'\x01', '\x00', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  return start + header;
}

}  // namespace

void write_npy_tokens(const std::string& path, std::span<const int32_t> tokens) {
  const std::string start =
      npy_start(fmt::format("{{'descr': '<i4', 'fortran_order': False, 'shape': ({},), }}", tokens.size()));
  write_file_atomically(path, [&](std::FILE* file) {
    write_all(file, std::as_bytes(std::span(start)));
    write_all(file, std::as_bytes(tokens));
  });
}

void write_npy_rows(const std::string& path, int64_t n_rows, int64_t n_columns,
                    const std::function<void(const AppendRows&)>& fill) {
  KV2_CHECK(n_rows >= 0 && n_columns > 0 && n_rows <= std::numeric_limits<int64_t>::max() / 4 / n_columns);
  const std::string start = npy_start(
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", n_rows, n_columns));
  write_file_atomically(path, [&](std::FILE* file) {
    write_all(file, std::as_bytes(std::span(start)));
    int64_t left = n_rows * n_columns;
    fill([&](std::span<const float> values) {
      KV2_CHECK(static_cast<int64_t>(values.size()) <= left, "{} values past the end", values.size());
      left -= static_cast<int64_t>(values.size());
      write_all(file, std::as_bytes(values));
    });
    KV2_CHECK(left == 0, "{} values missing", left);
  });
}

}  // namespace kv2
