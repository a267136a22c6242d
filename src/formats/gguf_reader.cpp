// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf_reader.h"

#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace kv2 {
namespace {

static_assert(std::endian::native == std::endian::little, "kv2 reads little-endian files by copying");

struct TypeRow {
  std::string_view name;
  size_t min_bytes;  // of one value
};
constexpr std::array<TypeRow, 13> kTypes = {{{"uint8", 1},
                                             {"int8", 1},
                                             {"uint16", 2},
                                             {"int16", 2},
                                             {"uint32", 4},
                                             {"int32", 4},
                                             {"float32", 4},
                                             {"bool", 1},
                                             {"string", 8},
                                             {"array", 12},
                                             {"uint64", 8},
                                             {"int64", 8},
                                             {"float64", 8}}};

bool is_float(GgufType t) {
  return t == GgufType::F32 || t == GgufType::F64;
}

}  // namespace

std::string_view type_name(GgufType type) {
  return kTypes.at(static_cast<size_t>(type)).name;
}

void GgufReader::fail(std::string_view what, std::string_view problem) const {
  throw_error(ErrorCode::BadFile, "{}: {}: {} (at byte {} of {})", file_, what, problem, at_, bytes_.size());
}

std::span<const std::byte> GgufReader::take(size_t n, std::string_view what) {
  if (n > remaining())
    fail(what, fmt::format("the file is truncated: {} bytes needed, {} left", n, remaining()));
  const auto out = bytes_.subspan(at_, n);
  at_ += n;
  return out;
}

template <class T>
T GgufReader::number(std::string_view what) {
  T x;
  std::memcpy(&x, take(sizeof x, what).data(), sizeof x);
  return x;
}

uint32_t GgufReader::u32(std::string_view what) {
  return number<uint32_t>(what);
}
uint64_t GgufReader::u64(std::string_view what) {
  return number<uint64_t>(what);
}

std::string GgufReader::string(size_t max_bytes, std::string_view what) {
  const uint64_t n = u64(what);
  if (n > max_bytes) fail(what, fmt::format("a string of {} bytes; up to {} are allowed", n, max_bytes));
  const auto bytes = take(static_cast<size_t>(n), what);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void GgufReader::check_count(uint64_t n, size_t min_bytes, std::string_view what) const {
  if (n > remaining() / min_bytes)
    fail(what,
         fmt::format(
             "{} entries of at least {} bytes do not fit in the {} bytes left; the file is truncated or "
             "corrupted",
             n, min_bytes, remaining()));
}

template <class T>
int64_t GgufReader::integer(std::string_view what) {
  const T x = number<T>(what);
  if constexpr (std::is_same_v<T, uint64_t>)
    if (x > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      fail(what, fmt::format("{} is out of range; integers up to 2^63 - 1 are supported", x));
  return static_cast<int64_t>(x);
}

int64_t GgufReader::any_integer(GgufType type, std::string_view what) {
  switch (type) {
    case GgufType::U8:
      return integer<uint8_t>(what);
    case GgufType::I8:
      return integer<int8_t>(what);
    case GgufType::U16:
      return integer<uint16_t>(what);
    case GgufType::I16:
      return integer<int16_t>(what);
    case GgufType::U32:
      return integer<uint32_t>(what);
    case GgufType::I32:
      return integer<int32_t>(what);
    case GgufType::U64:
      return integer<uint64_t>(what);
    case GgufType::I64:
      return integer<int64_t>(what);
    default:
      break;
  }
  KV2_CHECK(false, "{} is no integer", type_name(type));
  return 0;
}

double GgufReader::any_float(GgufType type, std::string_view what) {
  return type == GgufType::F32 ? static_cast<double>(number<float>(what)) : number<double>(what);
}

bool GgufReader::boolean(std::string_view what) {
  const uint8_t x = number<uint8_t>(what);
  if (x > 1) fail(what, fmt::format("a bool is 0 or 1, not {}", x));
  return x == 1;
}

GgufType GgufReader::type(std::string_view what) {
  const uint32_t t = u32(what);
  if (t >= kTypes.size()) fail(what, fmt::format("unknown value type {}; GGUF v3 has 0 to 12", t));
  return static_cast<GgufType>(t);
}

GgufValue GgufReader::value(std::string_view what) {
  const GgufType t = type(what);
  return t == GgufType::Array ? array(what) : scalar(t, what);
}

GgufValue GgufReader::scalar(GgufType type, std::string_view what) {
  GgufValue out;
  out.type = type;
  if (type == GgufType::String)
    out.value = string(GgufFile::kMaxStringBytes, what);
  else if (type == GgufType::Bool)
    out.value = boolean(what);
  else if (is_float(type))
    out.value = any_float(type, what);
  else
    out.value = any_integer(type, what);
  return out;
}

GgufValue GgufReader::array(std::string_view what) {
  GgufValue out;
  out.array = true;
  out.type = type(what);
  if (out.type == GgufType::Array)
    fail(what, "an array of arrays; arrays of numbers, bools and strings are supported");
  const uint64_t n = u64(what);
  if (n > GgufFile::kMaxArrayElements)
    fail(what, fmt::format("an array of {} elements; up to {} are allowed", n, GgufFile::kMaxArrayElements));
  check_count(n, kTypes[static_cast<size_t>(out.type)].min_bytes, what);
  const auto fill = [&](auto items, const auto& read) {
    items.reserve(n);
    for (uint64_t i = 0; i < n; i++) items.push_back(read());
    out.value = std::move(items);
  };
  if (out.type == GgufType::String)
    fill(GgufValue::Strings{}, [&] { return string(GgufFile::kMaxStringBytes, what); });
  else if (out.type == GgufType::Bool)
    fill(std::vector<bool>{}, [&] { return boolean(what); });
  else if (is_float(out.type))
    fill(std::vector<double>{}, [&] { return any_float(out.type, what); });
  else
    fill(std::vector<int64_t>{}, [&] { return any_integer(out.type, what); });
  return out;
}

}  // namespace kv2
