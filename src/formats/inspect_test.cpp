// SPDX-License-Identifier: Apache-2.0
// inspect_file on every kind of file, under names that say nothing.
#include "formats/inspect.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "formats/safetensors.h"
#include "formats/test_calibration.h"
#include "formats/test_expect.h"
#include "formats/test_writer.h"

namespace kv2 {
namespace {

using testing::expect_error;

class Inspect : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(dir_); }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string put(const std::string& name, const std::string& bytes) {
    write_file_atomically(dir_ + "/" + name,
                          [&](std::FILE* f) { write_all(f, std::as_bytes(std::span(bytes))); });
    return dir_ + "/" + name;
  }
  static void expect_parts(const std::string& text, testing::Parts parts) {
    for (const std::string_view part : parts)
      EXPECT_NE(text.find(part), text.npos) << "no \"" << part << "\" in:\n" << text;
  }
  std::string dir_ = ::testing::TempDir() + "kv2_inspect_" + std::to_string(::getpid());
};

TEST_F(Inspect, Gguf) {
  const std::string path = put("x.bin", testing::small_gguf());
  expect_parts(inspect_file(path, false),
               {path + ": GGUF v3", "metadata: 17 keys", "general.architecture", "'llama'", "array of string",
                "[3] 'a', '', 'two words'", "[2] 0.5, -1.5", "tensors: 3", "1 F32, 1 Q4_0, 1 Q8_0", "matrix",
                "[2, 3]", "24 bytes"});
  const std::string json = inspect_file(path, true);
  EXPECT_EQ(json.find('\n'), json.size() - 1) << "one line";
  const auto doc = nlohmann::json::parse(json);
  EXPECT_EQ(doc["kind"], "GGUF v3");
  EXPECT_EQ(doc["bytes"], testing::small_gguf().size());
  EXPECT_EQ(doc["metadata"][0]["value"], "llama");
  EXPECT_EQ(doc["metadata"][13]["first"], (std::vector<int>{1, -2, 3}));
  EXPECT_EQ(doc["tensors"][0]["shape"], (std::vector<int>{2, 3}));
  EXPECT_EQ(doc["totals"]["elements"], 6 + 32 + 32);
}

TEST_F(Inspect, LongAndHostileTextIsCutAndEscaped) {
  std::vector<std::string> many(1000, "token");
  const std::string path = put("x", testing::GgufWriter()
                                        .strings("many", many)
                                        .string("long", std::string(100000, 'x'))
                                        .string("evil\x1b[31m", "a\nb\xff")
                                        .bytes());
  const std::string text = inspect_file(path, false);
  EXPECT_LT(text.size(), 2000u);
  expect_parts(text, {"[1000] 'token', 'token'", "…", "evil\\x1b[31m", "'a\\x0ab\\xff'"});
  EXPECT_EQ(nlohmann::json::parse(inspect_file(path, true))["metadata"][0]["count"], 1000);
}

TEST_F(Inspect, SafetensorsAndCalibration) {
  const std::string path = put("y.gguf", testing::small_safetensors());
  expect_parts(inspect_file(path, false), {": safetensors", "'pt'", "BF16", "[1, 1, 2]", "I8"});
  const std::string calibration = dir_ + "/z";
  testing::small_calibration().save(calibration);
  expect_parts(inspect_file(calibration, false),
               {": calibration", "model_fingerprint", "'llama-0123456789abcdef'", "notes.source", "clip_k",
                "0.9600", "0.9500", "1.0000", "0.9000", "layer.1.c_s_energy"});
  const auto doc = nlohmann::json::parse(inspect_file(calibration, true));
  ASSERT_EQ(doc["layers"].size(), 2u);
  EXPECT_FLOAT_EQ(doc["layers"][1]["clip_v"].get<float>(), 0.9f);
}

TEST_F(Inspect, HuggingFaceDirectory) {
  put("config.json", R"({"model_type":"qwen3","rope":{"type":"linear"},"n":7})");
  put("model.safetensors", testing::small_safetensors());
  expect_parts(inspect_file(dir_, false), {"Hugging Face directory", "config.json: model_type", "'qwen3'",
                                           R"({"type":"linear"})", "[2, 3]"});
  EXPECT_EQ(nlohmann::json::parse(inspect_file(dir_, true))["tensors"].size(), 3u);
}

TEST_F(Inspect, AnythingElse) {
  for (const std::string bytes : {"", "hello", "PK\3\4 a zip file of some length"}) {
    const std::string path = put("w", bytes);
    expect_error(ErrorCode::BadFile, {path, "unknown kind"}, [&] { inspect_file(path, false); });
  }
  const std::string path = put("w", testing::small_gguf().substr(0, 100));
  expect_error(ErrorCode::BadFile, {path, "truncated"}, [&] { inspect_file(path, false); });
  expect_error(ErrorCode::Io, {"/no/such/file"}, [] { inspect_file("/no/such/file", true); });
}

}  // namespace
}  // namespace kv2
