// SPDX-License-Identifier: Apache-2.0
// .npy files: the three integer types and versions, every truncation, every single corrupted header byte, the
// writer.
#include "eval/npy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "kv2/error.h"

namespace kv2 {
namespace {

std::string make(int major, const std::string& dictionary, const std::string& data) {
  std::string header = dictionary;
  const size_t prefix = major == 1 ? 10 : 12;
  header.append(63 - (prefix + header.size()) % 64, ' ');
  header += '\n';
  std::string out = "\x93NUMPY";
  out += static_cast<char>(major);
  out += '\0';
  for (size_t i = 0; i < prefix - 8; i++) out += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return out + header + data;
}

template <class T>
std::string raw(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::vector<int32_t> parse(const std::string& bytes) {
  return parse_npy_tokens(std::as_bytes(std::span(bytes)), "ids.npy");
}

ErrorCode code_of(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("ids.npy"), std::string::npos) << e.what();
    return e.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::Bug;
}

std::string dictionary(const std::string& type, const std::string& shape) {
  return "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
}

TEST(Npy, ReadsEveryTypeAndVersion) {
  const std::vector<int32_t> ids{3, 70000, 0, -1};
  for (int version = 1; version <= 3; version++) {
    EXPECT_EQ(parse(make(version, dictionary("<i4", "(4,)"), raw(ids))), ids);
    EXPECT_EQ(parse(make(version, dictionary("<i8", "(4,)"), raw(std::vector<int64_t>{3, 70000, 0, -1}))),
              ids);
  }
  EXPECT_EQ(parse(make(1, dictionary("<u2", "(3,)"), raw(std::vector<uint16_t>{1, 65535, 9}))),
            (std::vector<int32_t>{1, 65535, 9}));
  EXPECT_TRUE(parse(make(1, dictionary("<i4", "(0,)"), "")).empty());
  EXPECT_EQ(parse(make(1, "{ \"shape\":(2 , ), 'fortran_order' :False,'descr':'<i4'}",
                       raw(std::vector<int32_t>{5, 6}))),
            (std::vector<int32_t>{5, 6}));  // any order, spacing and quotes
}

TEST(Npy, RefusesWhatItDoesNotRead) {
  const std::string data = raw(std::vector<int32_t>{1, 2, 3, 4});
  EXPECT_EQ(code_of(make(1, dictionary("<f4", "(4,)"), data)), ErrorCode::Unsupported);
  EXPECT_EQ(code_of(make(1, dictionary(">i4", "(4,)"), data)), ErrorCode::Unsupported);
  EXPECT_EQ(code_of(make(1, dictionary("<i4", "(2, 2)"), data)), ErrorCode::Unsupported);
  EXPECT_EQ(code_of(make(1, dictionary("<i4", "()"), data)), ErrorCode::Unsupported);
  EXPECT_EQ(code_of(make(4, dictionary("<i4", "(4,)"), data)), ErrorCode::Unsupported);
  EXPECT_EQ(code_of(make(1, "{'descr': '<i4', 'fortran_order': True, 'shape': (4,), }", data)),
            ErrorCode::Unsupported);
  EXPECT_EQ(code_of(make(1, "{'descr': '<i4', 'shape': (4,), }", data)), ErrorCode::BadFile);
  EXPECT_EQ(code_of(make(1, "{'descr': '<i4', 'descr': '<i4', 'fortran_order': False, 'shape': (4,)}", data)),
            ErrorCode::BadFile);
  EXPECT_EQ(code_of(make(1, dictionary("<i4", "(4611686018427387905,)"), data)), ErrorCode::BadFile);
  EXPECT_EQ(code_of(make(1, dictionary("<i4", "(99999999999999999999999,)"), data)), ErrorCode::BadFile);
  EXPECT_EQ(code_of(make(1, dictionary("<i4", "(-4,)"), data)), ErrorCode::BadFile);
  EXPECT_EQ(code_of(make(1, dictionary("<i4", "(4,)"), data + "x")), ErrorCode::BadFile);
  EXPECT_EQ(code_of(make(1, dictionary("<i8", "(1,)"), raw(std::vector<int64_t>{int64_t{1} << 31}))),
            ErrorCode::BadFile);
  EXPECT_EQ(code_of(""), ErrorCode::BadFile);
  EXPECT_EQ(code_of("PK\x03\x04 something else entirely"), ErrorCode::BadFile);
}

TEST(Npy, EveryTruncationIsAnError) {
  for (int version = 1; version <= 2; version++) {
    const std::string whole = make(version, dictionary("<i4", "(3,)"), raw(std::vector<int32_t>{1, 2, 3}));
    for (size_t n = 0; n < whole.size(); n++) EXPECT_EQ(code_of(whole.substr(0, n)), ErrorCode::BadFile) << n;
  }
}

TEST(Npy, CorruptedHeadersNeverCrashOrInvent) {
  const std::string whole = make(1, dictionary("<i4", "(3,)"), raw(std::vector<int32_t>{1, 2, 3}));
  const size_t header = whole.size() - 12;
  for (size_t i = 0; i < header; i++)
    for (int flip = 1; flip < 256; flip++) {
      std::string bad = whole;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      try {
        EXPECT_LE(parse(bad).size(), 6u);  // at most what the file's bytes can hold
      } catch (const Error& e) {
        EXPECT_TRUE(e.code() == ErrorCode::BadFile || e.code() == ErrorCode::Unsupported) << e.what();
      }
    }
}

struct TempFile {
  std::string path =
      (std::filesystem::temp_directory_path() / ("kv2_npy_test_" + std::to_string(::getpid()))).string();
  ~TempFile() { std::filesystem::remove(path); }
};

TEST(Npy, WritesRowsThatAreAllThereOrNotAtAll) {
  const TempFile file;
  const std::vector<float> values{1.5f, -2, 3, 4, 5, 6};
  write_npy_rows(file.path, 3, 2, [&](const AppendRows& append) {
    append(std::span(values).first(2));
    append(std::span(values).last(4));
  });
  const std::string bytes = read_file(file.path, 1 << 20);
  ASSERT_EQ(bytes.size() % 64, values.size() * 4 % 64);
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t header = static_cast<uint8_t>(bytes[8]) + 256 * static_cast<uint8_t>(bytes[9]);
  EXPECT_EQ(bytes.substr(10, 57), "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2),");
  EXPECT_EQ(bytes[10 + header - 1], '\n');
  EXPECT_EQ(bytes.substr(10 + header), raw(values));

  // A writer that fails leaves the old file as it was.
  EXPECT_THROW(write_npy_rows(file.path, 3, 2,
                              [&](const AppendRows& append) {
                                append(values);
                                throw Error(ErrorCode::Interrupted, "Ctrl-C");
                              }),
               Error);
  EXPECT_THROW(write_npy_rows(file.path, 4, 2, [&](const AppendRows& append) { append(values); }), Error);
  EXPECT_EQ(read_file(file.path, 1 << 20), bytes);
}

TEST(Npy, TokensThatWereWrittenAreRead) {
  const std::string path = testing::TempDir() + "kv2_npy_tokens.npy";
  for (const std::vector<int32_t>& tokens : {std::vector<int32_t>{}, {7}, {0, -1, 2147483647, 49151}}) {
    write_npy_tokens(path, tokens);
    EXPECT_EQ(read_npy_tokens(path), tokens);
  }
}

TEST(Npy, ReadsFromAFileAndNamesAMissingOne) {
  const TempFile file;
  const std::string bytes = make(1, dictionary("<i4", "(2,)"), raw(std::vector<int32_t>{8, 9}));
  write_file_atomically(file.path, [&](std::FILE* f) { write_all(f, std::as_bytes(std::span(bytes))); });
  EXPECT_EQ(read_npy_tokens(file.path), (std::vector<int32_t>{8, 9}));
  EXPECT_THROW(read_npy_tokens(file.path + ".missing"), Error);
}

}  // namespace
}  // namespace kv2
