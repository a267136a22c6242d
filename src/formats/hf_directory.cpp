// SPDX-License-Identifier: Apache-2.0
// A Hugging Face directory as one TensorFile.
#include <filesystem>
#include <set>

#include "base/check.h"
#include "base/file.h"
#include "formats/quote.h"
#include "formats/safetensors.h"
#include "formats/safetensors_header.h"

namespace kv2 {
namespace {

constexpr size_t kMaxConfigBytes = size_t{16} << 20, kMaxIndexBytes = size_t{100} << 20, kMaxShards = 4096;

bool is_file(const std::string& path) {
  std::error_code ec;
  return std::filesystem::is_regular_file(path, ec);
}

}  // namespace

std::unique_ptr<HfDirectory> HfDirectory::open(const std::string& path) {
  std::error_code ec;
  if (!std::filesystem::is_directory(path, ec))
    throw_error(ErrorCode::Io, "cannot open {}: {}", path, ec ? ec.message() : "not a directory");
  std::unique_ptr<HfDirectory> out(new HfDirectory);
  out->path_ = path;
  const std::string config = path + "/config.json", generation = path + "/generation_config.json";
  if (!is_file(config))
    throw_error(ErrorCode::BadFile,
                "{}: no config.json; a Hugging Face directory has config.json and model.safetensors, "
                "or shards with model.safetensors.index.json",
                path);
  out->config_json_ = read_file(config, kMaxConfigBytes);
  require_json_object(out->config_json_, config);
  if (is_file(generation)) {
    out->generation_json_ = read_file(generation, kMaxConfigBytes);
    require_json_object(out->generation_json_, generation);
  }
  out->open_shards();
  return out;
}

void HfDirectory::open_shards() {
  const std::string single = "model.safetensors", index_path = path_ + "/model.safetensors.index.json";
  if (is_file(path_ + "/" + single)) return add_shard(single);
  if (!is_file(index_path)) {
    const bool pickled =
        is_file(path_ + "/pytorch_model.bin") || is_file(path_ + "/pytorch_model.bin.index.json");
    throw_error(ErrorCode::BadFile, "{}: neither model.safetensors nor model.safetensors.index.json{}", path_,
                pickled ? "; its weights are pickled (pytorch_model.bin), save them as safetensors" : "");
  }
  const auto weight_map = parse_safetensors_index(read_file(index_path, kMaxIndexBytes), index_path);
  std::set<std::string> shards;
  for (const auto& [name, shard] : weight_map) shards.insert(shard);
  if (shards.size() > kMaxShards)
    throw_error(ErrorCode::BadFile, "{}: {} shards; up to {} are allowed", index_path, shards.size(),
                kMaxShards);
  for (const std::string& shard : shards) {
    if (!is_file(path_ + "/" + shard))
      throw_error(ErrorCode::BadFile, "{}: shard {} is named but is not there", index_path, quote(shard));
    add_shard(shard);
  }
  for (const auto& [name, shard] : weight_map) {
    const auto it = index_.find(name);
    if (it == index_.end() || shards_[it->second.first]->name() != path_ + "/" + shard)
      throw_error(ErrorCode::BadFile, "{}: tensor {} is not in shard {}", index_path, quote(name),
                  quote(shard));
  }
}

void HfDirectory::add_shard(const std::string& file) {
  auto shard = SafetensorsFile::open(path_ + "/" + file);
  for (const TensorInfo& t : shard->tensors()) {
    if (!index_.emplace(t.name, std::pair(shards_.size(), tensors_.size())).second)
      throw_error(ErrorCode::BadFile, "{}: tensor {} is in two shards, {} is the second", path_,
                  quote(t.name), quote(file));
    tensors_.push_back(t);
  }
  shards_.push_back(std::move(shard));
}

const TensorInfo* HfDirectory::find(std::string_view name) const {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : &tensors_[it->second.second];
}

std::span<const std::byte> HfDirectory::raw(const TensorInfo& tensor) const {
  const auto it = index_.find(tensor.name);
  KV2_CHECK(it != index_.end(), "{} has no tensor {}", path_, quote(tensor.name));
  return shards_[it->second.first]->raw(tensor);
}

void HfDirectory::read_rows(const TensorInfo& tensor, int64_t row0, int64_t n, float* out) const {
  const auto it = index_.find(tensor.name);
  KV2_CHECK(it != index_.end(), "{} has no tensor {}", path_, quote(tensor.name));
  shards_[it->second.first]->read_rows(tensor, row0, n, out);
}

}  // namespace kv2
