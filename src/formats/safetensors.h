// SPDX-License-Identifier: Apache-2.0
// safetensors: one file, or a Hugging Face directory (config.json, one file or shards with an index).
//
// clang-format off
//   | header length:8 (little endian) | header: JSON object, spaces after it allowed | data |
//   {"__metadata__": {"key": "text", …}, "name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, …}
// clang-format on
//
// Rules enforced: header <= 100 MB, no duplicate keys, offsets inside the file, contiguous, no overlap and no
// gap, sizes equal to shape × dtype, the last tensor ends where the file ends. Names of shards are plain file
// names of the directory. Every dtype of the format is listed; F32, F16 and BF16 can be read.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>

#include "base/mmap.h"
#include "formats/tensor_file.h"
#include "kv2/tensor.h"

namespace kv2 {

class SafetensorsFile final : public TensorFile {
 public:
  static std::unique_ptr<SafetensorsFile> open(const std::string& path);
  static std::unique_ptr<SafetensorsFile> parse(std::span<const std::byte> bytes, const std::string& name);

  static constexpr size_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
  static constexpr size_t kMaxDims = 8;

  const std::map<std::string, std::string>& metadata() const { return metadata_; }  // "__metadata__"
  const std::string& name() const { return name_; }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view name) const override;
  std::span<const std::byte> raw(const TensorInfo& tensor) const override;
  void read_rows(const TensorInfo& tensor, int64_t row0, int64_t n, float* out) const override;
  std::string kind() const override { return "safetensors"; }
  void forget() const override {
    if (file_) file_->forget();
  }

 private:
  SafetensorsFile() = default;
  void parse_all();

  std::string name_;
  std::unique_ptr<MappedFile> file_;
  std::span<const std::byte> bytes_;  // the whole file
  std::span<const std::byte> data_;   // what stands behind the header
  std::map<std::string, std::string> metadata_;
  std::vector<TensorInfo> tensors_;
  std::vector<size_t> offsets_;  // in data_, in ascending order like tensors_
  std::unordered_map<std::string, size_t> index_;
};

/// A Hugging Face directory: config.json, optional generation_config.json, model.safetensors or shards +
/// index.
class HfDirectory final : public TensorFile {
 public:
  static std::unique_ptr<HfDirectory> open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::string& config_json() const { return config_json_; }          // text of config.json
  const std::string& generation_json() const { return generation_json_; }  // empty when absent

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view name) const override;
  std::span<const std::byte> raw(const TensorInfo& tensor) const override;
  void read_rows(const TensorInfo& tensor, int64_t row0, int64_t n, float* out) const override;
  std::string kind() const override { return "Hugging Face directory"; }
  void forget() const override {
    for (const auto& shard : shards_) shard->forget();
  }

 private:
  HfDirectory() = default;
  void open_shards();
  void add_shard(const std::string& file);

  std::string path_, config_json_, generation_json_;
  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, std::pair<size_t, size_t>> index_;  // name -> (shard, position in tensors_)
};

/// What is written by write_safetensors.
struct SafetensorsTensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};
/// One file, atomically (temporary name, fsync, rename). Data aligned to 64 bytes by padding the header with
/// spaces.
void write_safetensors(const std::string& path, const std::map<std::string, std::string>& metadata,
                       std::span<const SafetensorsTensor> tensors);

}  // namespace kv2
