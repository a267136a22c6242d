// SPDX-License-Identifier: Apache-2.0
// Parsing and reading of tensors; the typed access to metadata is in gguf_metadata.cpp.
#include "formats/gguf.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "formats/dequantize.h"
#include "formats/gguf_reader.h"
#include "formats/quote.h"
#include "formats/recognize.h"

namespace kv2 {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
// Smallest possible entries: key = length, one byte, type, one byte; tensor = length, one byte, n_dims, dim,
// type, offset.
constexpr size_t kMinKeyBytes = 8 + 1 + 4 + 1, kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

/// Bytes of a tensor of this shape (slowest first). Errors: BadFile for a row that is no whole number of
/// blocks and for sizes that overflow.
size_t tensor_bytes(const GgufReader& in, const BlockType& type, const TensorInfo& t, std::string_view what) {
  const int64_t row = t.shape.back();
  if (row % type.block_elements != 0)
    in.fail(what, fmt::format("rows of {} elements are not a multiple of the {} of a {} block", row,
                              type.block_elements, type.name));
  int64_t n = 1;
  size_t bytes = 0;
  for (const int64_t d : t.shape)
    if (__builtin_mul_overflow(n, d, &n)) in.fail(what, "the number of elements overflows 64 bits");
  if (__builtin_mul_overflow(static_cast<size_t>(n / type.block_elements), type.block_bytes, &bytes))
    in.fail(what, "its size in bytes overflows 64 bits");
  return bytes;
}

TensorInfo read_tensor_info(GgufReader& in, const std::string& file, uint64_t index, size_t& offset) {
  TensorInfo t;
  const std::string which = fmt::format("name of tensor {}", index);
  t.name = in.string(GgufFile::kMaxTensorNameBytes, which);
  if (t.name.empty()) in.fail(which, "it is empty");
  const std::string what = "tensor " + quote(t.name);
  const uint32_t n_dims = in.u32(what);
  if (n_dims < 1 || n_dims > GgufFile::kMaxDims)
    in.fail(what, fmt::format("{} dimensions; 1 to {} are supported", n_dims, GgufFile::kMaxDims));
  for (uint32_t i = 0; i < n_dims; i++) {
    const uint64_t d = in.u64(what);
    if (d == 0 || d > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      in.fail(what, fmt::format("dimension {} is {}", i, d));
    t.shape.push_back(static_cast<int64_t>(d));
  }
  std::reverse(t.shape.begin(), t.shape.end());  // the file has the fastest first
  const uint32_t id = in.u32(what);
  const BlockType* type = find_block_type(id);
  if (!type)
    throw_error(ErrorCode::Unsupported, "{}: {}: unknown tensor type {}; supported are {}", file, what, id,
                decodable_types());
  t.type = type->name;
  t.bytes = tensor_bytes(in, *type, t, what);
  const uint64_t at = in.u64(what);
  if (at > std::numeric_limits<size_t>::max()) in.fail(what, fmt::format("offset {}", at));
  offset = static_cast<size_t>(at);
  return t;
}

}  // namespace

std::unique_ptr<GgufFile> GgufFile::open(const std::string& path) {
  auto file = std::make_unique<MappedFile>(path);
  auto out = parse(file->bytes(), path);
  out->file_ = std::move(file);
  return out;
}

std::unique_ptr<GgufFile> GgufFile::parse(std::span<const std::byte> bytes, const std::string& name) {
  std::unique_ptr<GgufFile> out(new GgufFile);
  out->bytes_ = bytes;
  out->name_ = name;
  out->parse_all();
  return out;
}

void GgufFile::parse_all() {
  GgufReader in(bytes_, name_);
  if (bytes_.empty()) throw_error(ErrorCode::BadFile, "{}: the file is empty", name_);
  if (in.u32("magic") != kMagic)
    throw_error(ErrorCode::BadFile,
                "{}: not a GGUF file but {}; a model is a GGUF file or a Hugging Face directory", name_,
                kind_text(recognize(bytes_)));
  const uint32_t version = in.u32("version");
  if (version != kVersion && (version & 0xffff) == 0)
    throw_error(ErrorCode::Unsupported, "{}: a big-endian GGUF file; little-endian GGUF v{} is supported",
                name_, kVersion);
  if (version != kVersion)
    throw_error(ErrorCode::Unsupported,
                "{}: GGUF version {}; version {} is supported, convert the model again", name_, version,
                kVersion);
  const uint64_t n_tensors = in.u64("tensor count"), n_keys = in.u64("key count");
  in.check_count(n_tensors, kMinTensorBytes, "tensor count");
  in.check_count(n_keys, kMinKeyBytes, "key count");
  read_metadata(in, n_keys);
  if (const auto parts = find_integer("split.count"); parts && *parts > 1)
    throw_error(ErrorCode::Unsupported,
                "{}: one of {} parts of a split model; join them first (llama-gguf-split --merge)", name_,
                *parts);
  read_tensor_table(in, n_tensors);
  place_tensors(in.position());
}

void GgufFile::read_metadata(GgufReader& in, uint64_t n_keys) {
  metadata_.reserve(n_keys);
  for (uint64_t i = 0; i < n_keys; i++) {
    const std::string which = fmt::format("name of key {}", i);
    std::string key = in.string(kMaxKeyBytes, which);
    if (key.empty()) in.fail(which, "it is empty");
    const std::string what = "key " + quote(key);
    if (!key_index_.emplace(key, metadata_.size()).second) in.fail(what, "it is there twice");
    GgufValue value = in.value(what);
    metadata_.emplace_back(std::move(key), std::move(value));
  }
}

void GgufFile::read_tensor_table(GgufReader& in, uint64_t n_tensors) {
  in.check_count(n_tensors, kMinTensorBytes, "tensor count");  // again: the metadata has taken its part
  tensors_.reserve(n_tensors);
  offsets_.reserve(n_tensors);
  for (uint64_t i = 0; i < n_tensors; i++) {
    size_t offset = 0;
    TensorInfo t = read_tensor_info(in, name_, i, offset);
    if (!tensor_index_.emplace(t.name, tensors_.size()).second)
      in.fail("tensor " + quote(t.name), "it is there twice");
    offsets_.push_back(offset);
    tensors_.push_back(std::move(t));
  }
}

/// Offsets relative to the data become absolute; alignment, end of file and overlaps are checked (one sort).
void GgufFile::place_tensors(size_t table_end) {
  size_t alignment = 32;
  if (const GgufValue* v = find_key("general.alignment")) {
    const int64_t* a = v->type == GgufType::U32 && !v->array ? std::get_if<int64_t>(&v->value) : nullptr;
    if (!a) wrong_type("general.alignment", *v, "a uint32");
    alignment = static_cast<size_t>(*a);
    if (alignment < 8 || alignment > kMaxAlignment || !std::has_single_bit(alignment))
      throw_error(ErrorCode::BadFile, "{}: general.alignment is {}; powers of two from 8 to {} are supported",
                  name_, alignment, kMaxAlignment);
  }
  const size_t start = (table_end + alignment - 1) / alignment * alignment;
  const size_t room = start <= bytes_.size() ? bytes_.size() - start : 0;
  for (size_t i = 0; i < tensors_.size(); i++) {
    const TensorInfo& t = tensors_[i];
    if (offsets_[i] % alignment != 0)
      throw_error(ErrorCode::BadFile, "{}: tensor {}: offset {} is not a multiple of the alignment {}", name_,
                  quote(t.name), offsets_[i], alignment);
    if (offsets_[i] > room || t.bytes > room - offsets_[i])
      throw_error(ErrorCode::BadFile,
                  "{}: tensor {}: {} bytes at offset {} end past the {} bytes of tensor data; the file is "
                  "truncated or "
                  "corrupted",
                  name_, quote(t.name), t.bytes, offsets_[i], room);
  }
  std::vector<size_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return offsets_[a] < offsets_[b]; });
  for (size_t i = 1; i < order.size(); i++) {
    const size_t a = order[i - 1], b = order[i];
    if (offsets_[a] + tensors_[a].bytes > offsets_[b])
      throw_error(ErrorCode::BadFile, "{}: tensors {} and {} overlap", name_, quote(tensors_[a].name),
                  quote(tensors_[b].name));
  }
  for (size_t& offset : offsets_) offset += start;
}

const TensorInfo* GgufFile::find(std::string_view name) const {
  const auto it = tensor_index_.find(std::string(name));
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

std::span<const std::byte> GgufFile::raw(const TensorInfo& tensor) const {
  const auto it = tensor_index_.find(tensor.name);
  KV2_CHECK(it != tensor_index_.end(), "{} has no tensor {}", name_, quote(tensor.name));
  return bytes_.subspan(offsets_[it->second], tensors_[it->second].bytes);
}

void GgufFile::read_rows(const TensorInfo& tensor, int64_t row0, int64_t n, float* out) const {
  const std::span<const std::byte> bytes = raw(tensor);
  const BlockType* type = find_block_type(tensor.type);
  KV2_CHECK(type != nullptr, "type {}", tensor.type);
  if (!type->decode)
    throw_error(ErrorCode::Unsupported, "{}: tensor {} has type {}, which is not supported; supported are {}",
                name_, quote(tensor.name), tensor.type, decodable_types());
  const int64_t row = tensor.shape.size() == 1 ? 1 : tensor.shape.back(), n_rows = tensor.n_elements() / row;
  KV2_CHECK(row0 >= 0 && n >= 0 && row0 <= n_rows && n <= n_rows - row0, "rows {} + {} of {}", row0, n,
            n_rows);
  decode_elements(*type, bytes, row0 * row, n * row, out);
}

}  // namespace kv2
