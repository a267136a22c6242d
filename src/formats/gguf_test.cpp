// SPDX-License-Identifier: Apache-2.0
// GGUF: what honest files give, and that every dishonest one costs exactly one kv2::Error.
#include "formats/gguf.h"

#include <gtest/gtest.h>

#include <cstring>

#include "formats/test_expect.h"
#include "formats/test_writer.h"

namespace kv2 {
namespace {

using testing::as_bytes;
using testing::expect_error;
using testing::GgufWriter;
using testing::le;
using testing::small_gguf;

// A copy on the heap of exactly that size: a read past its end is seen by the address sanitizer.
std::unique_ptr<GgufFile> parse(const std::string& bytes) {
  static std::vector<std::byte> held;
  held.assign(as_bytes(bytes).begin(), as_bytes(bytes).end());
  held.shrink_to_fit();
  return GgufFile::parse(held, "test.gguf");
}

void expect_bad(testing::Parts parts, const GgufWriter& file, ErrorCode code = ErrorCode::BadFile) {
  expect_error(code, parts, [&] { parse(file.bytes()); });
}

TEST(Gguf, MetadataOfEveryType) {
  const std::string bytes = small_gguf();
  const auto file = parse(bytes);
  EXPECT_EQ(file->metadata().size(), 17u);
  EXPECT_EQ(file->metadata()[0].first, "general.architecture");
  EXPECT_EQ(file->string("general.architecture"), "llama");
  EXPECT_EQ(file->integer("test.u8"), 200);
  EXPECT_EQ(file->integer("test.i8"), -100);
  EXPECT_EQ(file->integer("test.u16"), 60000);
  EXPECT_EQ(file->integer("test.i16"), -30000);
  EXPECT_EQ(file->integer("test.u32"), 4000000000);
  EXPECT_EQ(file->integer("test.i32"), -2000000000);
  EXPECT_EQ(file->integer("test.u64"), INT64_MAX);
  EXPECT_EQ(file->integer("test.i64"), INT64_MIN);
  EXPECT_EQ(file->number("test.f32"), static_cast<double>(0.1f));
  EXPECT_EQ(file->number("test.f64"), 1e300);
  EXPECT_EQ(file->number("test.i8"), -100.0);
  EXPECT_EQ(file->find_bool("test.bool"), true);
  EXPECT_EQ(*file->find_strings("test.strings"), (std::vector<std::string>{"a", "", "two words"}));
  EXPECT_EQ(file->find_integers("test.i32s"), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(file->find_numbers("test.f32s"), (std::vector<double>{0.5, -1.5}));
  EXPECT_EQ(file->find_numbers("test.i32s"), (std::vector<double>{1, -2, 3}));
  EXPECT_EQ(std::get<std::vector<bool>>(file->find_key("test.bools")->value),
            (std::vector<bool>{true, false, true}));
  EXPECT_TRUE(file->find_strings("test.none")->empty());
  EXPECT_EQ(file->find_key("test.bools")->type_text(), "array of bool");
  EXPECT_EQ(file->find_key("test.u16")->type_text(), "uint16");
}

TEST(Gguf, AbsentKeysAndWrongTypes) {
  const std::string bytes = small_gguf();
  const auto file = parse(bytes);
  EXPECT_FALSE(file->find_integer("no"));
  EXPECT_FALSE(file->find_number("no"));
  EXPECT_FALSE(file->find_bool("no"));
  EXPECT_FALSE(file->find_string("no"));
  EXPECT_FALSE(file->find_strings("no"));
  EXPECT_FALSE(file->find_integers("no"));
  EXPECT_FALSE(file->find_numbers("no"));
  EXPECT_EQ(file->find("no"), nullptr);
  using C = ErrorCode;
  expect_error(C::BadFile, {"test.gguf", "'no'"}, [&] { file->integer("no"); });
  expect_error(C::BadFile, {"test.gguf", "'no'"}, [&] { file->number("no"); });
  expect_error(C::BadFile, {"test.gguf", "'no'"}, [&] { file->string("no"); });
  expect_error(C::BadFile, {"'test.f32'", "float32", "an integer"}, [&] { file->integer("test.f32"); });
  expect_error(C::BadFile, {"'test.f32'", "float32", "an integer"}, [&] { file->find_integer("test.f32"); });
  expect_error(C::BadFile, {"'test.bool'", "bool", "a number"}, [&] { file->find_number("test.bool"); });
  expect_error(C::BadFile, {"'test.u8'", "uint8", "a string"}, [&] { file->find_string("test.u8"); });
  expect_error(C::BadFile, {"'test.u8'", "uint8", "a bool"}, [&] { file->find_bool("test.u8"); });
  expect_error(C::BadFile, {"'test.i32s'", "array of int32", "an array of strings"},
               [&] { file->find_strings("test.i32s"); });
  expect_error(C::BadFile, {"'test.f32s'", "array of float32", "an array of integers"},
               [&] { file->find_integers("test.f32s"); });
  expect_error(C::BadFile, {"'test.u8'", "an array of numbers"}, [&] { file->find_numbers("test.u8"); });
}

TEST(Gguf, TensorsSlowestFirst) {
  const std::string bytes = small_gguf();
  const auto file = parse(bytes);
  ASSERT_EQ(file->tensors().size(), 3u);
  const TensorInfo& m = *file->find("matrix");
  EXPECT_EQ(m.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(m.type, "F32");
  EXPECT_EQ(m.bytes, 24u);
  float row[3];
  file->read_rows(m, 1, 1, row);
  EXPECT_EQ(row[0], 0.125f);
  EXPECT_EQ(row[1], -7.0f);
  EXPECT_EQ(row[2], 0.5f);
  float q[32], v[3];
  file->read_rows(*file->find("quant"), 0, 1, q);
  for (int i = 0; i < 16; i++) {
    EXPECT_EQ(q[i], static_cast<float>(i - 8));
    EXPECT_EQ(q[i + 16], static_cast<float>(7 - i));
  }
  file->read_rows(*file->find("vector"), 5, 3, v);  // elements of a vector, not at a block's begin
  for (int i = 0; i < 3; i++) EXPECT_EQ(v[i], 0.5f * static_cast<float>((5 + i) * 7 - 100));
  expect_error(ErrorCode::Bug, {"rows"}, [&] { file->read_rows(m, 1, 2, q); });
  expect_error(ErrorCode::Bug, {"rows"}, [&] { file->read_rows(m, -1, 1, q); });
}

TEST(Gguf, AlignmentIsHonoured) {
  GgufWriter w;
  w.alignment = 64;
  w.u32("general.alignment", 64).tensor("a", {1}, 0, le(1.0f)).tensor("b", {1}, 0, le(2.0f));
  const std::string bytes = w.bytes();
  const auto file = parse(bytes);
  float x;
  file->read_rows(*file->find("b"), 0, 1, &x);
  EXPECT_EQ(x, 2.0f);
}

TEST(Gguf, EmptyFileOfNoTensors) {
  EXPECT_TRUE(parse(GgufWriter().bytes())->tensors().empty());
  expect_error(ErrorCode::BadFile, {"test.gguf", "empty"}, [&] { parse(""); });
}

TEST(Gguf, TruncationAtEveryByteIsOneError) {
  const std::string bytes = small_gguf();
  ASSERT_NO_THROW(parse(bytes));
  for (size_t n = 0; n < bytes.size(); n++)
    expect_error(ErrorCode::BadFile, {"test.gguf"}, [&] { parse(bytes.substr(0, n)); });
}

// Any byte set to any of these: parsed and readable, or one error.
TEST(Gguf, EveryByteCorruptedIsNoCrash) {
  const std::string bytes = small_gguf();
  int parsed = 0;
  for (size_t i = 0; i < bytes.size(); i++) {
    for (const int x : {0x00, 0x01, 0x7f, 0x80, 0xff, ~bytes[i] & 0xff}) {
      std::string bad = bytes;
      bad[i] = static_cast<char>(x);
      try {
        const auto file = parse(bad);
        for (const TensorInfo& t : file->tensors()) {
          std::vector<float> out(static_cast<size_t>(t.n_elements()));
          file->read_rows(t, 0, t.shape.size() == 1 ? t.n_elements() : t.n_elements() / t.shape.back(),
                          out.data());
        }
        parsed++;
      } catch (const Error& e) {
        EXPECT_NE(e.code(), ErrorCode::Bug) << e.what();
      }
    }
  }
  EXPECT_GT(parsed, 0);
}

TEST(Gguf, HeadersOfOtherKinds) {
  GgufWriter w;
  w.version = 2;
  expect_bad({"version 2", "version 3"}, w, ErrorCode::Unsupported);
  w.version = 0x03000000;
  expect_bad({"big-endian"}, w, ErrorCode::Unsupported);
  w.version = 4;
  expect_bad({"version 4"}, w, ErrorCode::Unsupported);
  expect_error(ErrorCode::BadFile, {"not a GGUF file", "safetensors"},
               [] { parse(testing::small_safetensors()); });
  expect_error(ErrorCode::BadFile, {"not a GGUF file", "unknown kind"},
               [] { parse("#!/bin/sh\necho hello\n"); });
  expect_bad({"3 parts", "split"}, GgufWriter().key("split.count", 2, le<uint16_t>(3)),
             ErrorCode::Unsupported);
  EXPECT_NO_THROW(parse(GgufWriter().key("split.count", 2, le<uint16_t>(1)).bytes()));
}

TEST(Gguf, CountsThatTheFileCannotHold) {
  for (const uint64_t n :
       {uint64_t{2}, uint64_t{1} << 20, uint64_t{1} << 40, uint64_t{1} << 61, ~uint64_t{0}}) {
    SCOPED_TRACE(n);
    GgufWriter w;
    w.u32("a", 1).tensor("t", {1}, 0, le(1.0f));
    w.n_tensors = n;
    expect_bad({"test.gguf"}, w);
    w.n_tensors.reset();
    w.n_keys = n;
    expect_bad({"test.gguf"}, w);
    if (n == 2) continue;
    expect_bad({"key 'a'"}, GgufWriter().array("a", 0, n, "xy"));
    expect_bad({"key 'a'"}, GgufWriter().array("a", 8, n, GgufWriter::text("xy")));
    expect_bad({"key 'a'"}, GgufWriter().key("a", 8, le(n) + "xy"));
    std::string bytes = GgufWriter().u32("a", 1).bytes();
    bytes.replace(24, 8, le(n));  // the length of the first key's name
    expect_error(ErrorCode::BadFile, {"name of key 0"}, [&] { parse(bytes); });
  }
  expect_bad({"key 'a'", "array of 16777217", "16777216"},
             GgufWriter().array("a", 0, (16u << 20) + 1, std::string((16 << 20) + 1, 'x')));
  expect_bad({"key 'a'", "67108865"}, GgufWriter().string("a", std::string((64 << 20) + 1, 'x')));
}

TEST(Gguf, Keys) {
  expect_bad({"key 'a'", "twice"}, GgufWriter().u32("a", 1).u32("b", 1).u32("a", 2));
  expect_bad({"key 0", "empty"}, GgufWriter().u32("", 1));
  expect_bad({"key 0", "70000"}, GgufWriter().u32(std::string(70000, 'k'), 1));
  expect_bad({"key 'a'", "type 13"}, GgufWriter().key("a", 13, le<uint64_t>(0)));
  expect_bad({"key 'a'", "array of arrays"},
             GgufWriter().array("a", 9, 1, le<uint32_t>(0) + le<uint64_t>(0)));
  expect_bad({"key 'a'", "bool"}, GgufWriter().key("a", 7, "\2"));
  expect_bad({"key 'a'", "9223372036854775808"}, GgufWriter().key("a", 10, le(uint64_t{1} << 63)));
  expect_bad({"key '\\x0aa\\x1b'"},
             GgufWriter().key("\na\x1b", 99, ""));  // no control characters in messages
}

TEST(Gguf, Alignment) {
  for (const uint32_t a : {0u, 1u, 4u, 24u, 48u, 2u << 20, 0x80000000u}) {
    SCOPED_TRACE(a);
    expect_bad({"general.alignment", std::to_string(a)}, GgufWriter().u32("general.alignment", a));
  }
  expect_bad({"general.alignment", "uint64", "uint32"},
             GgufWriter().key("general.alignment", 10, le<uint64_t>(32)));
  expect_bad({"general.alignment", "array of uint32"},
             GgufWriter().array("general.alignment", 4, 1, le<uint32_t>(32)));
  EXPECT_NO_THROW(parse(GgufWriter().u32("general.alignment", 8).bytes()));
  EXPECT_NO_THROW(parse(GgufWriter().u32("general.alignment", 1u << 20).bytes()));
}

TEST(Gguf, TensorTable) {
  const std::string one = le(1.0f);
  expect_bad({"tensor 't'", "twice"}, GgufWriter().tensor("t", {1}, 0, one).tensor("t", {1}, 0, one));
  expect_bad({"tensor 0", "empty"}, GgufWriter().tensor("", {1}, 0, one));
  expect_bad({"tensor 0", "64 bytes"}, GgufWriter().tensor(std::string(64, 'n'), {1}, 0, one));
  EXPECT_NO_THROW(parse(GgufWriter().tensor(std::string(63, 'n'), {1}, 0, one).bytes()));
  expect_bad({"'t'", "0 dimensions"}, GgufWriter().tensor("t", {}, 0, one));
  expect_bad({"'t'", "5 dimensions"}, GgufWriter().tensor("t", {1, 1, 1, 1, 1}, 0, one));
  EXPECT_NO_THROW(parse(GgufWriter().tensor("t", {1, 1, 1, 1}, 0, one).bytes()));
  expect_bad({"'t'", "dimension 1 is 0"}, GgufWriter().tensor("t", {1, 0}, 0, one));
  expect_bad({"'t'", "dimension 0"}, GgufWriter().tensor("t", {uint64_t{1} << 63}, 0, one));
  expect_bad({"'t'", "overflow"}, GgufWriter().tensor("t", {uint64_t{1} << 32, uint64_t{1} << 32}, 0, one));
  expect_bad({"'t'", "overflow"},
             GgufWriter().tensor("t", {uint64_t{1} << 62}, 0, one));  // bytes, not elements
  expect_bad({"'t'", "31", "multiple", "32", "Q4_0"},
             GgufWriter().tensor("t", {31}, 2, std::string(18, 'x')));
  expect_bad({"'t'", "multiple", "256", "Q6_K"},
             GgufWriter().tensor("t", {128, 2}, 14, std::string(210, 'x')));
  expect_bad({"'t'", "type 4", "Q4_0", "Q6_K"}, GgufWriter().tensor("t", {1}, 4, one),
             ErrorCode::Unsupported);
  expect_bad({"'t'", "type 4294967295"}, GgufWriter().tensor("t", {1}, ~0u, one), ErrorCode::Unsupported);
}

TEST(Gguf, TensorPlaces) {
  const std::string data(64, 'x');
  expect_bad({"'b'", "offset 33", "alignment 32"},
             GgufWriter().tensor("a", {16}, 0, data).tensor("b", {1}, 0, data, 33));
  expect_bad({"'b'", "past"}, GgufWriter().tensor("a", {16}, 0, data).tensor("b", {1}, 0, data, 128));
  expect_bad({"'b'", "past"}, GgufWriter().tensor("a", {16}, 0, data).tensor("b", {33}, 0, data, 0));
  expect_bad({"'b'", "past"},
             GgufWriter().tensor("a", {16}, 0, data).tensor("b", {1}, 0, data, ~uint64_t{31}));
  expect_bad({"'a'", "'b'", "overlap"},
             GgufWriter().tensor("a", {16}, 0, data).tensor("b", {1}, 0, data, 32));
  expect_bad({"'a'", "'b'", "overlap"},
             GgufWriter().tensor("a", {16}, 0, data).tensor("b", {16}, 0, data, 0));
  // Out of order and with a gap is fine.
  EXPECT_NO_THROW(parse(GgufWriter().tensor("a", {1}, 0, data, 96).tensor("b", {1}, 0, data, 0).bytes()));
}

TEST(Gguf, TypesThatAreListedAndNotRead) {
  const std::string bytes = GgufWriter().tensor("t", {32}, 20, std::string(18, 'x')).bytes();
  const auto file = parse(bytes);
  EXPECT_EQ(file->find("t")->type, "IQ4_NL");
  float out[32];
  expect_error(ErrorCode::Unsupported, {"'t'", "IQ4_NL", "Q4_K"},
               [&] { file->read_rows(*file->find("t"), 0, 32, out); });
}

TEST(Gguf, OpenNamesThePath) {
  expect_error(ErrorCode::Io, {"/no/such/file.gguf"}, [] { GgufFile::open("/no/such/file.gguf"); });
  expect_error(ErrorCode::Io, {"regular file"}, [] { GgufFile::open("/"); });
}

}  // namespace
}  // namespace kv2
