// SPDX-License-Identifier: Apache-2.0
// GGUF: parse, ask for keys by every type, read rows, describe.
#include "formats/gguf.h"
#include "formats/inspect.h"
#include "read_tensors.h"

namespace {

using namespace kv2;

void ask_for_keys(const GgufFile& file) {
  for (const auto& entry : file.metadata()) {
    const std::string& key = entry.first;
    fuzz::expect_error_at_most([&] { file.integer(key); });
    fuzz::expect_error_at_most([&] { file.number(key); });
    fuzz::expect_error_at_most([&] { file.string(key); });
    fuzz::expect_error_at_most([&] { file.find_bool(key); });
    fuzz::expect_error_at_most([&] { file.find_strings(key); });
    fuzz::expect_error_at_most([&] { file.find_integers(key); });
    fuzz::expect_error_at_most([&] { file.find_numbers(key); });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  fuzz::expect_error_at_most([&] {
    const auto file = GgufFile::parse(bytes, "fuzz.gguf");
    ask_for_keys(*file);
    fuzz::read_tensors(*file);
    inspect_bytes(bytes, "fuzz.gguf", false);
    inspect_bytes(bytes, "fuzz.gguf", true);
  });
  return 0;
}
