// SPDX-License-Identifier: Apache-2.0
// The JSON header of a safetensors file, and the index of a directory of shards: syntax only. Duplicate and
// unknown keys are refused here; whether offsets and sizes make sense is the file's business.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tensor_file.h"

namespace kv2 {

struct HeaderTensor {
  TensorInfo info;  // without bytes
  uint64_t begin = 0, end = 0;
};
struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<HeaderTensor> tensors;  // in the header's order
};

/// Errors: BadFile naming `file` and the tensor or key.
SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& file);

/// "weight_map" of model.safetensors.index.json: tensor name -> shard, a plain file name (checked).
std::map<std::string, std::string> parse_safetensors_index(std::string_view json, const std::string& file);

/// Throws BadFile unless the text is one JSON object of sane depth.
void require_json_object(std::string_view json, const std::string& file);

}  // namespace kv2
