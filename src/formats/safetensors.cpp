// SPDX-License-Identifier: Apache-2.0
// One safetensors file. Directories are in hf_directory.cpp, writing in safetensors_write.cpp.
#include "formats/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <tuple>

#include "base/check.h"
#include "formats/dequantize.h"
#include "formats/quote.h"
#include "formats/safetensors_header.h"

namespace kv2 {
namespace {

struct DTypeRow {
  std::string_view name;
  int bits;
};
constexpr std::array<DTypeRow, 20> kDTypes = {{{"F32", 32},    {"F16", 16},    {"BF16", 16},   {"F64", 64},
                                               {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6},
                                               {"F6_E3M2", 6}, {"F4", 4},      {"I64", 64},    {"I32", 32},
                                               {"I16", 16},    {"I8", 8},      {"U64", 64},    {"U32", 32},
                                               {"U16", 16},    {"U8", 8},      {"BOOL", 8},    {"C64", 64}}};
constexpr std::string_view kDecodable = "F32 F16 BF16";

bool decodable(std::string_view dtype) {
  return dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

/// Bytes of a tensor; throws BadFile on overflow and on a number of bits that is no whole number of bytes.
size_t tensor_bytes(const std::string& file, const TensorInfo& t) {
  const auto row =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeRow& r) { return r.name == t.type; });
  if (row == kDTypes.end())
    throw_error(ErrorCode::Unsupported, "{}: tensor {}: unknown dtype {}; {} can be read", file,
                quote(t.name), quote(t.type), kDecodable);
  int64_t bits = row->bits;
  // From left to right like TensorInfo::n_elements, so that [2^40, 2^40, 0] is an overflow too.
  for (const int64_t d : t.shape)
    if (__builtin_mul_overflow(bits, d, &bits))
      throw_error(ErrorCode::BadFile, "{}: tensor {}: its size overflows 64 bits", file, quote(t.name));
  if (bits % 8 != 0)
    throw_error(ErrorCode::BadFile, "{}: tensor {}: {} bits are no whole number of bytes", file,
                quote(t.name), bits);
  return static_cast<size_t>(bits / 8);
}

}  // namespace

std::unique_ptr<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  auto file = std::make_unique<MappedFile>(path);
  auto out = parse(file->bytes(), path);
  out->file_ = std::move(file);
  return out;
}

std::unique_ptr<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes,
                                                        const std::string& name) {
  std::unique_ptr<SafetensorsFile> out(new SafetensorsFile);
  out->bytes_ = bytes;
  out->name_ = name;
  out->parse_all();
  return out;
}

void SafetensorsFile::parse_all() {
  uint64_t n = 0;
  if (bytes_.size() < sizeof n)
    throw_error(ErrorCode::BadFile, "{}: not a safetensors file: {} bytes, the header length alone has 8",
                name_, bytes_.size());
  std::memcpy(&n, bytes_.data(), sizeof n);
  if (n > kMaxHeaderBytes)
    throw_error(ErrorCode::BadFile,
                "{}: not a safetensors file, or corrupted: a header of {} bytes; up to {} are allowed", name_,
                n, kMaxHeaderBytes);
  if (n > bytes_.size() - sizeof n)
    throw_error(ErrorCode::BadFile, "{}: the file is truncated: a header of {} bytes, {} are left", name_, n,
                bytes_.size() - sizeof n);
  const auto header = bytes_.subspan(sizeof n, static_cast<size_t>(n));
  data_ = bytes_.subspan(sizeof n + static_cast<size_t>(n));
  SafetensorsHeader parsed =
      parse_safetensors_header({reinterpret_cast<const char*>(header.data()), header.size()}, name_);
  metadata_ = std::move(parsed.metadata);
  // Ascending offsets; empty tensors, which share an offset with the next one, come first there.
  std::vector<size_t> order(parsed.tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const HeaderTensor &x = parsed.tensors[a], &y = parsed.tensors[b];
    return std::tie(x.begin, x.end, x.info.name) < std::tie(y.begin, y.end, y.info.name);
  });
  size_t end = 0;
  for (const size_t i : order) {
    HeaderTensor& t = parsed.tensors[i];
    const size_t bytes = tensor_bytes(name_, t.info);
    if (t.begin != end)
      throw_error(ErrorCode::BadFile, "{}: tensor {}: it begins at {}, {} the end of the one before it, {}",
                  name_, quote(t.info.name), t.begin, t.begin < end ? "overlapping" : "leaving a gap after",
                  end);
    if (t.end < t.begin || t.end - t.begin != bytes)
      throw_error(ErrorCode::BadFile,
                  "{}: tensor {}: data_offsets [{}, {}], but its shape and dtype {} need {} bytes", name_,
                  quote(t.info.name), t.begin, t.end, t.info.type, bytes);
    if (t.end > data_.size())
      throw_error(ErrorCode::BadFile,
                  "{}: tensor {}: it ends at {} of {} data bytes; the file is truncated or corrupted", name_,
                  quote(t.info.name), t.end, data_.size());
    t.info.bytes = bytes;
    end = static_cast<size_t>(t.end);
    index_.emplace(t.info.name, tensors_.size());
    offsets_.push_back(static_cast<size_t>(t.begin));
    tensors_.push_back(std::move(t.info));
  }
  if (end != data_.size())
    throw_error(ErrorCode::BadFile, "{}: {} bytes of data, but the tensors end at {}", name_, data_.size(),
                end);
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

std::span<const std::byte> SafetensorsFile::raw(const TensorInfo& tensor) const {
  const auto it = index_.find(tensor.name);
  KV2_CHECK(it != index_.end(), "{} has no tensor {}", name_, quote(tensor.name));
  return data_.subspan(offsets_[it->second], tensors_[it->second].bytes);
}

void SafetensorsFile::read_rows(const TensorInfo& tensor, int64_t row0, int64_t n, float* out) const {
  const std::span<const std::byte> bytes = raw(tensor);
  if (!decodable(tensor.type))
    throw_error(ErrorCode::Unsupported,
                "{}: tensor {} has dtype {}, which is not supported; supported are {}", name_,
                quote(tensor.name), tensor.type, kDecodable);
  const int64_t row = tensor.shape.size() <= 1 ? 1 : tensor.shape.back();
  const int64_t n_rows = row == 0 ? 0 : tensor.n_elements() / row;
  KV2_CHECK(row0 >= 0 && n >= 0 && row0 <= n_rows && n <= n_rows - row0, "rows {} + {} of {}", row0, n,
            n_rows);
  decode_elements(*find_block_type(tensor.type), bytes, row0 * row, n * row, out);
}

}  // namespace kv2
