// SPDX-License-Identifier: Apache-2.0
// Writes the seed corpora of the formats' targets: make_seeds CORPUS_DIR. Deterministic but for the tool
// version.
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "formats/dequantize.h"
#include "formats/test_calibration.h"
#include "formats/test_writer.h"

namespace {

using kv2::testing::GgufWriter;
using kv2::testing::le;
namespace fs = std::filesystem;

void put(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

/// One block of every type, 256 elements at least.
std::string every_type() {
  GgufWriter w;
  w.string("general.architecture", "qwen3").u32("general.alignment", 32);
  for (uint32_t id = 0; id < 64; id++) {
    const kv2::BlockType* t = kv2::find_block_type(id);
    if (!t) continue;
    std::string data(t->block_bytes, '\0');
    for (size_t i = 0; i < data.size(); i++) data[i] = static_cast<char>(i * 37 + id);
    w.tensor(std::string(t->name), {static_cast<uint64_t>(t->block_elements), 1}, id, data);
  }
  return w.bytes();
}

std::string tokenizer_like() {
  return GgufWriter()
      .string("general.architecture", "llama")
      .u32("llama.block_count", 2)
      .strings("tokenizer.ggml.tokens", {"<s>", "</s>", "a", "b", "ab"})
      .array("tokenizer.ggml.scores", 6, 3, le(0.0f) + le(-1.0f) + le(-2.0f))
      .array("tokenizer.ggml.token_type", 5, 3, le<int32_t>(3) + le<int32_t>(3) + le<int32_t>(1))
      .strings("tokenizer.ggml.merges", {"a b"})
      .tensor("output_norm.weight", {2}, 0, le(1.0f) + le(2.0f))
      .bytes();
}

/// The form of fuzz/framed.h: header text, a zero byte, data.
std::string unframed(const std::string& file) {
  uint64_t n;
  std::memcpy(&n, file.data(), sizeof n);
  std::string header = file.substr(sizeof n, n);
  header.erase(header.find_last_not_of(' ') + 1);
  return header + '\0' + file.substr(sizeof n + n);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: make_seeds CORPUS_DIR\n"), 2;
  const fs::path root = argv[1];
  put(root / "gguf/small", kv2::testing::small_gguf());
  put(root / "gguf/every_type", every_type());
  put(root / "gguf/tokenizer", tokenizer_like());
  put(root / "gguf/empty", GgufWriter().bytes());

  const std::string small = kv2::testing::small_safetensors();
  put(root / "safetensors/small", small);
  put(root / "safetensors/small_unframed", unframed(small));
  put(root / "safetensors/empty", kv2::testing::safetensors_bytes("{}", ""));
  put(root / "safetensors/index",
      R"({"metadata":{"total_size":8},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"x.safetensors"}})");

  const fs::path calibration = root / "calibration/one_head";
  fs::create_directories(calibration.parent_path());
  kv2::testing::small_calibration(1, 1, 1).save(calibration.string());
  put(root / "calibration/one_head_unframed", unframed(kv2::read_file(calibration.string(), 1 << 20)));
  kv2::testing::small_calibration(2, 2, 1).save((root / "calibration/two_heads").string());
  return 0;
}
