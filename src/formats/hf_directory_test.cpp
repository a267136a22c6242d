// SPDX-License-Identifier: Apache-2.0
// Hugging Face directories: single files, shards with an index, and what is refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "formats/safetensors.h"
#include "formats/test_expect.h"

namespace kv2 {
namespace {

using testing::expect_error;

class HfDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(dir_);
    put("config.json", R"({"model_type":"qwen3"})");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void put(const std::string& name, const std::string& text) {
    write_file_atomically(dir_ + "/" + name,
                          [&](std::FILE* f) { write_all(f, std::as_bytes(std::span(text))); });
  }
  /// One [2] tensor of the two values per name.
  void put_shard(const std::string& name, const std::vector<std::string>& tensors, float value) {
    const std::vector<float> data = {value, -value};
    std::vector<SafetensorsTensor> all;
    for (const std::string& t : tensors) all.push_back({t, DType::F32, {2}, std::as_bytes(std::span(data))});
    write_safetensors(dir_ + "/" + name, {}, all);
  }
  void put_index(const std::string& weight_map) {
    put("model.safetensors.index.json", R"({"metadata":{"total_size":16},"weight_map":)" + weight_map + "}");
  }
  void expect_bad(testing::Parts parts, ErrorCode code = ErrorCode::BadFile) {
    expect_error(code, parts, [&] { HfDirectory::open(dir_); });
  }

  std::string root_ = ::testing::TempDir() + "kv2_hf_" + std::to_string(::getpid()), dir_ = root_ + "/model";
};

TEST_F(HfDirectoryTest, OneFile) {
  put_shard("model.safetensors", {"a", "b"}, 3.0f);
  put("generation_config.json", R"({"eos_token_id":[1,2]})");
  const auto dir = HfDirectory::open(dir_);
  EXPECT_EQ(dir->path(), dir_);
  EXPECT_EQ(dir->config_json(), R"({"model_type":"qwen3"})");
  EXPECT_EQ(dir->generation_json(), R"({"eos_token_id":[1,2]})");
  EXPECT_EQ(dir->tensors().size(), 2u);
  float x[2];
  dir->read_rows(*dir->find("b"), 0, 2, x);
  EXPECT_EQ(x[1], -3.0f);
  EXPECT_EQ(dir->find("c"), nullptr);
}

TEST_F(HfDirectoryTest, Shards) {
  put_shard("model-1.safetensors", {"a", "b"}, 3.0f);
  put_shard("model-2.safetensors", {"c"}, 5.0f);
  put_index(R"({"a":"model-1.safetensors","c":"model-2.safetensors","b":"model-1.safetensors"})");
  const auto dir = HfDirectory::open(dir_);
  EXPECT_TRUE(dir->generation_json().empty());
  ASSERT_EQ(dir->tensors().size(), 3u);
  float x[2];
  dir->read_rows(*dir->find("c"), 0, 2, x);
  EXPECT_EQ(x[0], 5.0f);
  dir->read_rows(*dir->find("b"), 0, 2, x);
  EXPECT_EQ(x[0], 3.0f);
  EXPECT_EQ(dir->raw(*dir->find("a")).size(), 8u);
}

TEST_F(HfDirectoryTest, ConfigIsRequiredAndAnObject) {
  put_shard("model.safetensors", {"a"}, 1.0f);
  put("config.json", "[1]");
  expect_bad({"config.json", "not an object"});
  put("config.json", "");
  expect_bad({"config.json", "bad JSON"});
  put("config.json", "{\"a\":" + std::string(500, '[') + std::string(500, ']') + "}");
  expect_bad({"config.json", "bad JSON"});
  put("config.json", "{}");
  put("generation_config.json", "{");
  expect_bad({"generation_config.json", "bad JSON"});
  std::filesystem::remove(dir_ + "/config.json");
  expect_bad({"no config.json"});
}

TEST_F(HfDirectoryTest, NoWeights) {
  expect_bad({"model.safetensors.index.json"});
  put("pytorch_model.bin", "x");
  expect_bad({"pytorch_model.bin", "safetensors"});
  expect_error(ErrorCode::Io, {"/no/such/dir"}, [] { HfDirectory::open("/no/such/dir"); });
}

TEST_F(HfDirectoryTest, ShardNamesStayInTheDirectory) {
  const std::vector<float> data = {1.0f};
  write_safetensors(root_ + "/outside.safetensors", {},
                    std::vector<SafetensorsTensor>{{"a", DType::F32, {1}, std::as_bytes(std::span(data))}});
  for (const char* name : {"../outside.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ".", "",
                           ".hidden", "a\\\\b", "x\\u0000y"}) {
    SCOPED_TRACE(name);
    put_index(std::string(R"({"a":")") + name + "\"}");
    expect_bad({"'a'", "plain file name"});
  }
}

TEST_F(HfDirectoryTest, IndexAndShardsAgree) {
  put_shard("model-1.safetensors", {"a", "b"}, 3.0f);
  put_index(R"({"a":"model-1.safetensors","c":"model-1.safetensors"})");
  expect_bad({"'c'", "'model-1.safetensors'"});
  put_index(R"({"a":"model-9.safetensors"})");
  expect_bad({"'model-9.safetensors'", "not there"});
  put_shard("model-2.safetensors", {"b"}, 3.0f);
  put_index(R"({"a":"model-1.safetensors","b":"model-2.safetensors"})");
  expect_bad({"'b'", "two shards"});
  put_index("{}");
  expect_bad({"weight_map", "empty"});
  put_index("[]");
  expect_bad({"weight_map", "object"});
  put_index(R"({"a":1})");
  expect_bad({"weight_map", "'a'", "string"});
  put_index(R"({"a":"x","a":"y"})");
  expect_bad({"weight_map", "'a'", "twice"});
  put("model.safetensors.index.json", "{}");
  expect_bad({"index.json", "weight_map"});
}

}  // namespace
}  // namespace kv2
