// SPDX-License-Identifier: Apache-2.0
// safetensors: reading, writing, and that every rule of the header comment is enforced.
#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "formats/test_expect.h"
#include "formats/test_writer.h"

namespace kv2 {
namespace {

using testing::as_bytes;
using testing::expect_error;
using testing::le;
using testing::safetensors_bytes;
using testing::small_safetensors;

std::unique_ptr<SafetensorsFile> parse(const std::string& bytes) {
  static std::vector<std::byte> held;  // on the heap and of exactly that size, for the address sanitizer
  held.assign(as_bytes(bytes).begin(), as_bytes(bytes).end());
  held.shrink_to_fit();
  return SafetensorsFile::parse(held, "test.safetensors");
}

void expect_bad(testing::Parts parts, const std::string& header, const std::string& data = "",
                ErrorCode code = ErrorCode::BadFile) {
  SCOPED_TRACE(header.substr(0, 200));
  expect_error(code, parts, [&] { parse(safetensors_bytes(header, data)); });
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, uint64_t begin,
                  uint64_t end) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

TEST(Safetensors, Reads) {
  const auto file = parse(small_safetensors());
  EXPECT_EQ(file->metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(file->tensors().size(), 3u);
  const TensorInfo& a = *file->find("a");
  EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(a.bytes, 24u);
  float out[3];
  file->read_rows(a, 1, 1, out);
  EXPECT_EQ(out[0], 0.125f);
  EXPECT_EQ(out[2], 0.5f);
  file->read_rows(*file->find("b"), 1, 1, out);
  EXPECT_EQ(out[0], -2.0f);
  expect_error(ErrorCode::Unsupported, {"'c'", "I8", "F32 F16 BF16"},
               [&] { file->read_rows(*file->find("c"), 0, 1, out); });
  expect_error(ErrorCode::Bug, {"rows"}, [&] { file->read_rows(a, 2, 1, out); });
  EXPECT_EQ(file->raw(*file->find("c")).size(), 2u);
  EXPECT_EQ(file->find("d"), nullptr);
}

TEST(Safetensors, EmptyTensorsAndScalars) {
  const auto file =
      parse(safetensors_bytes("{" + entry("s", "F32", "[]", 0, 4) + "," + entry("z", "F16", "[3,0]", 4, 4) +
                                  "," + entry("first", "F64", "[0]", 0, 0) + "}",
                              le(2.5f)));
  float x = 0;
  file->read_rows(*file->find("s"), 0, 1, &x);
  EXPECT_EQ(x, 2.5f);
  file->read_rows(*file->find("z"), 0, 0, &x);
  EXPECT_TRUE(file->raw(*file->find("first")).empty());
  EXPECT_TRUE(parse(safetensors_bytes("{}", ""))->tensors().empty());
}

TEST(Safetensors, TruncationAtEveryByteIsOneError) {
  const std::string bytes = small_safetensors();
  for (size_t n = 0; n < bytes.size(); n++)
    expect_error(ErrorCode::BadFile, {"test.safetensors"}, [&] { parse(bytes.substr(0, n)); });
}

TEST(Safetensors, EveryByteCorruptedIsNoCrash) {
  const std::string bytes = small_safetensors();
  for (size_t i = 0; i < bytes.size(); i++) {
    for (const int x : {0x00, +'"', +'{', +'0', +'9', 0x7f, 0x80, 0xff, ~bytes[i] & 0xff}) {
      std::string bad = bytes;
      bad[i] = static_cast<char>(x);
      try {
        const auto file = parse(bad);
        for (const TensorInfo& t : file->tensors()) {
          std::vector<float> out(static_cast<size_t>(t.n_elements()));
          file->read_rows(t, 0, t.shape.size() < 2 ? t.n_elements() : t.n_elements() / t.shape.back(),
                          out.data());
        }
      } catch (const Error& e) {
        EXPECT_NE(e.code(), ErrorCode::Bug) << e.what();
      }
    }
  }
}

TEST(Safetensors, HeaderLength) {
  for (const uint64_t n : {uint64_t{100'000'001}, uint64_t{1} << 40, ~uint64_t{0}})
    expect_error(ErrorCode::BadFile, {"header of", "100000000"}, [&] { parse(le(n) + "{}"); });
  expect_error(ErrorCode::BadFile, {"header of 3", "2 are left"}, [&] { parse(le<uint64_t>(3) + "{}"); });
}

TEST(Safetensors, Json) {
  const std::string f = le(1.0f);
  expect_bad({"'{'"}, "");
  expect_bad({"'{'"}, " {}");
  expect_bad({"'{'"}, "[]");
  expect_bad({"bad JSON"}, "{");
  expect_bad({"bad JSON"}, "{}{}");
  expect_bad({"bad JSON"}, "{\"a\xff\":1}");  // not UTF-8
  expect_bad({"bad JSON"}, "{\"a\":" + std::string(100000, '['));
  expect_bad({"bad JSON"}, "{\"a\":" + std::string(1000, '[') + std::string(1000, ']') + "}");  // deep
  expect_bad({"tensor 'a'", "object"}, R"({"a":1})");
  expect_bad({"'a'", "twice"},
             "{" + entry("a", "F32", "[1]", 0, 4) + "," + entry("a", "F32", "[1]", 0, 4) + "}", f);
  expect_bad({"'a'", "'dtype'", "twice"},
             R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", f);
  expect_bad({"'__metadata__'", "twice"}, R"({"__metadata__":{},"__metadata__":{}})");
  expect_bad({"__metadata__", "'k'", "twice"}, R"({"__metadata__":{"k":"1","k":"2"}})");
  expect_bad({"__metadata__", "'k'", "string"}, R"({"__metadata__":{"k":1}})");
  expect_bad({"__metadata__", "object"}, R"({"__metadata__":[]})");
  expect_bad({"'a'", "unknown key 'x'"}, R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})",
             f);
  expect_bad({"'a'", "needs"}, R"({"a":{"dtype":"F32","shape":[1]}})", f);
  expect_bad({"'a'", "dtype", "string"}, R"({"a":{"dtype":1,"shape":[1],"data_offsets":[0,4]}})", f);
  expect_bad({"'a'", "shape", "array"}, R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", f);
  expect_bad({"'a'", "shape", "2^63"}, R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", f);
  expect_bad({"'a'", "shape", "2^63"}, R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", f);
  expect_bad({"'a'", "shape", "more than 8"}, "{" + entry("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) + "}", f);
  expect_bad({"'a'", "data_offsets"}, R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", f);
  expect_bad({"'a'", "data_offsets"}, R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,2,4]}})", f);
}

TEST(Safetensors, SizesAndPlaces) {
  const std::string d8(8, 'x');
  expect_bad({"'a'", "'F31'", "F32 F16 BF16"}, "{" + entry("a", "F31", "[1]", 0, 4) + "}", "abcd",
             ErrorCode::Unsupported);
  expect_bad({"'a'", "8 bytes"}, "{" + entry("a", "F32", "[2]", 0, 4) + "}", "abcd");
  expect_bad({"'a'", "4 bytes"}, "{" + entry("a", "F32", "[1]", 0, 8) + "}", d8);
  expect_bad({"'a'", "[4, 0]"},
             "{" + entry("b", "F32", "[1]", 0, 4) + "," + entry("a", "F32", "[1]", 4, 0) + "}", d8);
  expect_bad({"'a'", "whole number of bytes"}, "{" + entry("a", "F4", "[3]", 0, 2) + "}", "ab");
  EXPECT_NO_THROW(parse(safetensors_bytes("{" + entry("a", "F6_E2M3", "[4]", 0, 3) + "}", "abc")));
  expect_bad({"'a'", "overflow"}, "{" + entry("a", "F32", "[4294967296,4294967296]", 0, 4) + "}", "abcd");
  expect_bad({"'a'", "overflow"}, "{" + entry("a", "F32", "[1099511627776,1099511627776,0]", 0, 0) + "}");
  expect_bad({"'a'", "overflow"}, "{" + entry("a", "U8", "[9223372036854775807]", 0, 4) + "}", "abcd");
  expect_bad({"'b'", "gap"}, "{" + entry("a", "U8", "[2]", 0, 2) + "," + entry("b", "U8", "[2]", 3, 5) + "}",
             "abcde");
  expect_bad({"'a'", "gap"}, "{" + entry("a", "U8", "[2]", 1, 3) + "}", "abc");
  expect_bad({"'b'", "overlap"},
             "{" + entry("a", "U8", "[2]", 0, 2) + "," + entry("b", "U8", "[2]", 1, 3) + "}", "abc");
  expect_bad({"'b'", "overlap"},
             "{" + entry("a", "U8", "[2]", 0, 2) + "," + entry("b", "U8", "[2]", 0, 2) + "}", "ab");
  expect_bad({"'a'", "truncated"}, "{" + entry("a", "F32", "[2]", 0, 8) + "}", "abcd");
  expect_bad({"5 bytes of data", "end at 4"}, "{" + entry("a", "F32", "[1]", 0, 4) + "}", "abcde");
}

class SafetensorsWrite : public ::testing::Test {
 protected:
  std::string path_ =
      ::testing::TempDir() + "kv2_safetensors_write_" + std::to_string(::getpid()) + ".safetensors";
  void TearDown() override { std::filesystem::remove(path_); }
};

TEST_F(SafetensorsWrite, RoundTrip) {
  const std::vector<float> a = {1.5f, -2.0f, 3.25f};
  const std::vector<uint16_t> b = {0x3fc0, 0xc000, 0x4040, 0x0001, 0xffff, 0x8000};
  const std::string c = "xyz";
  const std::map<std::string, std::string> metadata = {{"quote\"d", "line\nbreak \u20ac"}, {"empty", ""}};
  const std::vector<SafetensorsTensor> tensors = {{"a", DType::F32, {3}, std::as_bytes(std::span(a))},
                                                  {"b/ü", DType::BF16, {2, 3}, std::as_bytes(std::span(b))},
                                                  {"none", DType::I64, {0, 5}, {}},
                                                  {"c", DType::U8, {3}, std::as_bytes(std::span(c))}};
  write_safetensors(path_, metadata, tensors);
  const auto file = SafetensorsFile::open(path_);
  EXPECT_EQ(file->metadata(), metadata);
  ASSERT_EQ(file->tensors().size(), 4u);
  for (const SafetensorsTensor& t : tensors) {
    const TensorInfo* found = file->find(t.name);
    ASSERT_TRUE(found) << t.name;
    EXPECT_EQ(found->shape, t.shape);
    const auto raw = file->raw(*found);
    EXPECT_EQ(raw.size(), t.bytes.size());
    EXPECT_TRUE(std::equal(raw.begin(), raw.end(), t.bytes.begin()));
  }
  EXPECT_EQ(file->find("c")->type, "U8");
  EXPECT_EQ(file->find("none")->type, "I64");
  const std::string bytes = read_file(path_, 1 << 20);
  uint64_t n;
  std::memcpy(&n, bytes.data(), 8);
  EXPECT_EQ((8 + n) % 64, 0u) << "data is aligned";
}

TEST_F(SafetensorsWrite, RefusesWhatCouldNotBeRead) {
  const std::string x = "abcd";
  const auto write = [&](const SafetensorsTensor& t) { write_safetensors(path_, {}, std::vector{t}); };
  expect_error(ErrorCode::Bug, {"'a'"}, [&] { write({"a", DType::F32, {2}, as_bytes(x)}); });
  expect_error(ErrorCode::Bug, {"'a'"}, [&] { write({"a", DType::F32, {-1}, as_bytes(x)}); });
  expect_error(ErrorCode::Bug, {""}, [&] { write({"", DType::F32, {1}, as_bytes(x)}); });
  expect_error(ErrorCode::BadArgument, {"UTF-8"}, [&] { write({"\xff", DType::F32, {1}, as_bytes(x)}); });
  const SafetensorsTensor t = {"a", DType::F32, {1}, as_bytes(x)};
  expect_error(ErrorCode::Bug, {"twice"}, [&] { write_safetensors(path_, {}, std::vector{t, t}); });
  EXPECT_FALSE(std::filesystem::exists(path_)) << "nothing is left half-written";
  expect_error(ErrorCode::Io, {"/proc/none/x.safetensors"},
               [&] { write_safetensors("/proc/none/x.safetensors", {}, std::vector{t}); });
}

}  // namespace
}  // namespace kv2
