// SPDX-License-Identifier: Apache-2.0
// safetensors: parse, read rows, describe; and the same bytes as the index of a directory and as a
// config.json.
#include "formats/inspect.h"
#include "formats/safetensors.h"
#include "formats/safetensors_header.h"
#include "framed.h"
#include "read_tensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kv2;
  const std::vector<std::byte> bytes = fuzz::framed(data, size);
  fuzz::expect_error_at_most([&] {
    const auto file = SafetensorsFile::parse(bytes, "fuzz.safetensors");
    fuzz::read_tensors(*file);
    inspect_bytes(bytes, "fuzz.safetensors", false);
    inspect_bytes(bytes, "fuzz.safetensors", true);
  });
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::expect_error_at_most([&] {
    for (const auto& [name, shard] : parse_safetensors_index(text, "index.json"))
      if (shard.find('/') != shard.npos || shard == "..") std::abort();
  });
  fuzz::expect_error_at_most([&] { require_json_object(text, "config.json"); });
  return 0;
}
