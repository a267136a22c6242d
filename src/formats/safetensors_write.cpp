// SPDX-License-Identifier: Apache-2.0
// Writing a safetensors file. What cannot be read back is refused before anything is written.
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "base/file.h"
#include "formats/quote.h"
#include "formats/safetensors.h"

namespace kv2 {
namespace {

constexpr size_t kDataAlignment = 64;

std::string_view dtype_name(DType t) {
  switch (t) {
    case DType::F32:
      return "F32";
    case DType::F16:
      return "F16";
    case DType::BF16:
      return "BF16";
    case DType::I32:
      return "I32";
    case DType::I64:
      return "I64";
    case DType::U8:
      return "U8";
  }
  KV2_CHECK(false, "dtype {}", static_cast<int>(t));
  return "";
}

void check_tensor(const SafetensorsTensor& t) {
  KV2_CHECK(!t.name.empty() && t.name != "__metadata__", "a tensor named {}", quote(t.name));
  KV2_CHECK(t.shape.size() <= SafetensorsFile::kMaxDims, "{}: {} dimensions", quote(t.name), t.shape.size());
  size_t bytes = size_of(t.dtype);
  for (const int64_t d : t.shape) {
    KV2_CHECK(d >= 0, "{}: dimension {}", quote(t.name), d);
    KV2_CHECK(!__builtin_mul_overflow(bytes, static_cast<size_t>(d), &bytes), "{}: size overflows",
              quote(t.name));
  }
  KV2_CHECK(bytes == t.bytes.size(), "{}: {} bytes, its shape needs {}", quote(t.name), t.bytes.size(),
            bytes);
}

std::string header_text(const std::map<std::string, std::string>& metadata,
                        std::span<const SafetensorsTensor> tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  size_t at = 0;
  std::set<std::string_view> names;
  for (const SafetensorsTensor& t : tensors) {
    check_tensor(t);
    KV2_CHECK(names.insert(t.name).second, "{} is there twice", quote(t.name));
    nlohmann::ordered_json entry;
    entry["dtype"] = dtype_name(t.dtype);
    entry["shape"] = t.shape;
    entry["data_offsets"] = {at, at + t.bytes.size()};
    header.push_back({t.name, std::move(entry)});
    at += t.bytes.size();
  }
  std::string out = header.dump();  // throws on text that is not UTF-8
  out.append((kDataAlignment - (8 + out.size()) % kDataAlignment) % kDataAlignment, ' ');
  return out;
}

}  // namespace

void write_safetensors(const std::string& path, const std::map<std::string, std::string>& metadata,
                       std::span<const SafetensorsTensor> tensors) {
  std::string header;
  try {
    header = header_text(metadata, tensors);
  } catch (const nlohmann::json::exception& e) {
    throw_error(ErrorCode::BadArgument, "cannot write {}: a name or a metadata text is not UTF-8 ({})", path,
                e.what());
  }
  if (header.size() > SafetensorsFile::kMaxHeaderBytes)
    throw_error(ErrorCode::BadArgument,
                "cannot write {}: its header would have {} bytes; up to {} are allowed", path, header.size(),
                SafetensorsFile::kMaxHeaderBytes);
  const uint64_t n = header.size();
  write_file_atomically(path, [&](std::FILE* f) {
    write_all(f, std::as_bytes(std::span(&n, 1)));
    write_all(f, std::as_bytes(std::span(header)));
    for (const SafetensorsTensor& t : tensors) write_all(f, t.bytes);
  });
}

}  // namespace kv2
