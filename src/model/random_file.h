// SPDX-License-Identifier: Apache-2.0
// A model of a known shape with random weights, so that speed needs no download: named like a path,
// "random:qwen3-8b". Its text means nothing.
#pragma once

#include <memory>
#include <string>

#include "formats/tensor_file.h"
#include "model/config.h"

namespace kv2 {

/// Matrices normal with variance 1 / n_in, vectors 1. The same name gives the same weights.
class RandomFile final : public TensorFile {
 public:
  /// nullptr where `path` does not begin with "random:". Errors: BadArgument with the shapes there are.
  static std::unique_ptr<RandomFile> open(const std::string& path);

  const ModelConfig& config() const { return config_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view name) const override;
  std::span<const std::byte> raw(const TensorInfo&) const override { return {}; }
  void read_rows(const TensorInfo& tensor, int64_t row0, int64_t n, float* out) const override;
  std::string kind() const override { return "random weights"; }

 private:
  explicit RandomFile(const ModelConfig& config);
  void add(std::string name, std::vector<int64_t> shape);

  ModelConfig config_;
  std::vector<TensorInfo> tensors_;
  std::vector<float> normals_;  // rows are runs of it from anywhere
};

}  // namespace kv2
