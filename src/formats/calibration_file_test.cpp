// SPDX-License-Identifier: Apache-2.0
// Calibration files: round trip, and every way in which a file can be wrong.
#include "formats/calibration_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/file.h"
#include "formats/gguf.h"
#include "formats/test_calibration.h"
#include "formats/test_expect.h"
#include "formats/test_writer.h"

namespace kv2 {
namespace {

using testing::expect_error;
using testing::small_calibration;

void expect_equal(const LayerCalibration& a, const LayerCalibration& b) {
  EXPECT_EQ(a.c_q, b.c_q);
  EXPECT_EQ(a.c_s, b.c_s);
  EXPECT_EQ(a.c_s_energy, b.c_s_energy);
  EXPECT_EQ(a.k_cov, b.k_cov);
  EXPECT_EQ(a.k_mean, b.k_mean);
  EXPECT_EQ(a.k_pre_cov, b.k_pre_cov);
  EXPECT_EQ(a.k_pre_mean, b.k_pre_mean);
  EXPECT_EQ(a.v_cov, b.v_cov);
  EXPECT_EQ(a.v_mean, b.v_mean);
  EXPECT_EQ(a.metric_v, b.metric_v);
  EXPECT_EQ(a.clip_k, b.clip_k);
  EXPECT_EQ(a.clip_v, b.clip_v);
}

class CalibrationFile : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  void put(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }
  /// The bytes of small_calibration(); saved once, since every save waits for the disk.
  std::span<const std::byte> honest() {
    static const std::string bytes = saved(small_calibration());
    return testing::as_bytes(bytes);
  }
  std::string saved(const Calibration& c) {
    c.save(path_);
    return read_file(path_, 1 << 20);
  }
  void expect_bad(testing::Parts parts, ErrorCode code = ErrorCode::BadFile) {
    expect_error(code, parts, [&] { Calibration::load(path_); });
  }
  /// Writes small_calibration() with one metadata value replaced, or removed when `value` is null.
  void put_with(const std::string& key, const char* value) {
    const auto file = SafetensorsFile::parse(honest(), "honest");
    auto metadata = file->metadata();
    if (value)
      metadata[key] = value;
    else
      metadata.erase(key);
    std::vector<SafetensorsTensor> tensors;
    for (const TensorInfo& t : file->tensors())
      tensors.push_back({t.name, DType::F32, t.shape, file->raw(t)});
    write_safetensors(path_, metadata, tensors);
  }
  /// The same with one tensor changed by `change`, which may clear its name to drop it.
  template <class F>
  void put_with_tensor(const std::string& name, const F& change) {
    const auto file = SafetensorsFile::parse(honest(), "honest");
    std::vector<SafetensorsTensor> tensors;
    for (const TensorInfo& t : file->tensors()) {
      SafetensorsTensor out = {t.name, DType::F32, t.shape, file->raw(t)};
      if (t.name == name) change(out);
      if (!out.name.empty()) tensors.push_back(out);
    }
    write_safetensors(path_, file->metadata(), tensors);
  }

  std::string path_ = ::testing::TempDir() + "kv2_calibration_" + std::to_string(::getpid()) + ".safetensors";
};

TEST_F(CalibrationFile, RoundTrip) {
  const Calibration c = small_calibration(3, 5, 4);
  c.save(path_);
  const Calibration d = Calibration::load(path_);
  EXPECT_EQ(d.model_fingerprint, c.model_fingerprint);
  EXPECT_EQ(d.n_kv_heads, 3);
  EXPECT_EQ(d.head_dim, 5);
  EXPECT_EQ(d.n_tokens, 4096);
  EXPECT_EQ(d.text_hash, c.text_hash);
  EXPECT_EQ(d.notes.at("source"), "sampled from the model");
  EXPECT_EQ(d.notes.at("seed"), "1");
  EXPECT_FALSE(d.notes.at("tool_version").empty());
  EXPECT_EQ(d.notes.size(), 3u);
  ASSERT_EQ(d.layers.size(), 4u);
  for (size_t i = 0; i < 4; i++) expect_equal(d.layers[i], c.layers[i]);
  const std::string once = read_file(path_, 1 << 20);
  EXPECT_EQ(saved(d), once) << "saving what was loaded changes nothing";
}

TEST_F(CalibrationFile, RequireModel) {
  const Calibration c = small_calibration();
  EXPECT_NO_THROW(c.require_model("llama-0123456789abcdef"));
  expect_error(ErrorCode::Mismatch, {"llama-0123456789abcdef", "qwen3-77", "kv2 calibrate"},
               [&] { c.require_model("qwen3-77"); });
}

TEST_F(CalibrationFile, TruncationAtEveryByteIsOneError) {
  const std::string bytes = saved(small_calibration(1, 2, 1));
  for (size_t n = 0; n < bytes.size(); n++) {
    expect_error(ErrorCode::BadFile, {"test.calibration"}, [&] {
      const std::vector<std::byte> part(testing::as_bytes(bytes).begin(),
                                        testing::as_bytes(bytes).begin() + n);
      read_calibration(*SafetensorsFile::parse(part, "test.calibration"));
    });
  }
}

TEST_F(CalibrationFile, OtherKindsOfFiles) {
  put(testing::small_gguf());
  expect_bad({path_, "GGUF", "not a calibration", "kv2 calibrate"});
  put(testing::small_safetensors());
  expect_bad({path_, "no calibration", "kv2 calibrate"});
  put("hello");
  expect_bad({path_, "not a calibration"});
  expect_error(ErrorCode::BadFile, {"directory", "kv2 calibrate"}, [] { Calibration::load("/"); });
  expect_error(ErrorCode::Io, {"/no/such/file"}, [] { Calibration::load("/no/such/file"); });
  small_calibration().save(path_);
  expect_error(ErrorCode::BadFile, {path_, "calibration", "model"}, [&] { GgufFile::open(path_); });
}

TEST_F(CalibrationFile, Metadata) {
  put_with("format_version", "1");  // had no metric_v
  expect_bad({"format '1'", "2", "kv2 calibrate"}, ErrorCode::Unsupported);
  put_with("format_version", "4");
  expect_bad({"format '4'", "formats 2 and 3", "kv2 calibrate"}, ErrorCode::Unsupported);
  put_with("method", "magic");
  expect_bad({"'magic'", "oscar"}, ErrorCode::Unsupported);
  for (const char* key : {"format_version", "method", "model_fingerprint", "n_kv_heads", "head_dim",
                          "n_layers", "n_tokens", "text_hash", "tool_version", "checksum"}) {
    put_with(key, nullptr);
    expect_bad({path_, key});
  }
  for (const char* key : {"n_kv_heads", "head_dim", "n_layers", "n_tokens"}) {
    for (const char* value : {"", "x", "0", "-1", "1.5", " 2", "2 ", "99999999999999999999", "0x2"}) {
      put_with(key, value);
      expect_bad({path_, key, value});
    }
  }
  put_with("model_fingerprint", "");
  expect_bad({"fingerprint"});
  put_with("n_layers", "65536");  // before anything is allocated for them
  expect_bad({"22 tensors", "720896"});
  put_with("head_dim", "4");
  expect_bad({"'layer.0.c_q'", "expected F32 [2, 4, 4]", "found F32 [2, 3, 3]"});
  put_with("n_kv_heads", "1");
  expect_bad({"'layer.0.c_q'", "expected F32 [1, 3, 3]"});
}

// Every bit of tensors counts, and so does metadata: the file is refused, whatever else may be wrong with it.
TEST_F(CalibrationFile, EveryFlippedBitIsSeen) {
  const std::string bytes = saved(small_calibration(1, 2, 1));
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  int of_checksum = 0;
  for (size_t i = 8 + header; i < bytes.size(); i++) {
    for (int bit = 0; bit < 8; bit++) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      try {
        read_calibration(*SafetensorsFile::parse(testing::as_bytes(damaged), "damaged"));
        ADD_FAILURE() << "bit " << bit << " of byte " << i;
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::BadFile);
        of_checksum += std::string(e.what()).find("the file is damaged") != std::string::npos;
      }
    }
  }
  EXPECT_GT(of_checksum, static_cast<int>(bytes.size() - 8 - header) * 7) << "the others are out of range";
  for (const char* key : {"model_fingerprint", "n_tokens", "text_hash", "tool_version", "notes.seed"}) {
    put_with(key, "77");
    expect_bad({path_, "checksum", "damaged", "kv2 calibrate"});
  }
  put_with("format_version", "2");  // a bit away from 3, and no way around the checksum
  expect_bad({path_, "checksum", "damaged"});
  put_with("checksum", "00");
  expect_bad({"metadata says '00'"});
}

TEST_F(CalibrationFile, FormatWithoutChecksumIsRead) {
  const Calibration c = small_calibration();
  {
    const auto file = SafetensorsFile::parse(honest(), "honest");
    auto metadata = file->metadata();
    metadata["format_version"] = "2";
    metadata.erase("checksum");
    std::vector<SafetensorsTensor> tensors;
    for (const TensorInfo& t : file->tensors())
      tensors.push_back({t.name, DType::F32, t.shape, file->raw(t)});
    write_safetensors(path_, metadata, tensors);
  }
  ::testing::internal::CaptureStderr();
  const Calibration d = Calibration::load(path_);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("no checksum"), std::string::npos);
  ASSERT_EQ(d.layers.size(), c.layers.size());
  for (size_t i = 0; i < c.layers.size(); i++) expect_equal(d.layers[i], c.layers[i]);
}

TEST_F(CalibrationFile, Tensors) {
  for (const char* field : {"c_q", "c_s", "c_s_energy", "k_cov", "k_mean", "k_pre_cov", "k_pre_mean", "v_cov",
                            "v_mean", "metric_v", "clips"}) {
    const std::string name = std::string("layer.1.") + field;
    SCOPED_TRACE(name);
    put_with_tensor(name, [](SafetensorsTensor& t) { t.name.clear(); });
    expect_bad({"21 tensors", "22", "kv2 calibrate"});
    put_with_tensor(name, [](SafetensorsTensor& t) { t.name += "x"; });
    expect_bad({"'" + name + "'", "missing", "kv2 calibrate"});
    put_with_tensor(name, [](SafetensorsTensor& t) { t.shape.push_back(1); });
    expect_bad({"'" + name + "'", "expected"});
    put_with_tensor(name, [](SafetensorsTensor& t) { t.dtype = DType::I32; });
    expect_bad({"'" + name + "'", "I32"});
    for (const float bad :
         {std::nanf(""), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      std::vector<float> values;
      put_with_tensor(name, [&](SafetensorsTensor& t) {
        values.assign(t.bytes.size() / 4, 0.5f);
        values[1] = bad;
        t.bytes = std::as_bytes(std::span(values));
      });
      expect_bad({"'" + name + "'", "value 1", "finite"});
    }
  }
  for (const float bad : {0.0f, -0.5f, 1.0001f}) {
    const std::vector<float> clips = {0.5f, bad};
    put_with_tensor("layer.0.clips",
                    [&](SafetensorsTensor& t) { t.bytes = std::as_bytes(std::span(clips)); });
    expect_bad({"'layer.0.clips'", "clip of V", "(0, 1]"});
  }
}

TEST_F(CalibrationFile, SaveRefusesWhatLoadWould) {
  Calibration c = small_calibration();
  c.layers[1].v_cov[4] = std::nanf("");
  expect_error(ErrorCode::BadArgument, {path_, "layer.1.v_cov", "value 4"}, [&] { c.save(path_); });
  c = small_calibration();
  c.layers[0].clip_k = 1.5f;
  expect_error(ErrorCode::BadArgument, {"layer.0.clips", "1.5"}, [&] { c.save(path_); });
  c = small_calibration();
  c.layers[0].k_mean.pop_back();
  expect_error(ErrorCode::Bug, {"layer.0.k_mean"}, [&] { c.save(path_); });
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace kv2
