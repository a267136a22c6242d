// SPDX-License-Identifier: Apache-2.0
#include "text/utf8.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "text/test_vocabulary.h"

namespace kv2 {
namespace {

/// Every code point, encoded: the oracle of what is well formed.
std::optional<char32_t> decode_strictly(std::string_view s) {
  for (size_t n = 1; n <= 4; n++) {
    if (s.size() != n) continue;
    const char32_t low[] = {0, 0x80, 0x800, 0x10000}, high[] = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};
    char32_t c = static_cast<uint8_t>(s[0]);
    const char32_t lead[] = {0, 0xC0, 0xE0, 0xF0}, mask[] = {0x7F, 0x1F, 0x0F, 0x07};
    if ((c & ~mask[n - 1] & 0xFF) != lead[n - 1]) return std::nullopt;
    c &= mask[n - 1];
    for (size_t i = 1; i < n; i++) {
      if ((static_cast<uint8_t>(s[i]) & 0xC0) != 0x80) return std::nullopt;
      c = c << 6 | (static_cast<uint8_t>(s[i]) & 0x3F);
    }
    if (c < low[n - 1] || c > high[n - 1] || (c >= 0xD800 && c < 0xE000)) return std::nullopt;
    return c;
  }
  return std::nullopt;
}

TEST(Utf8, EveryCodePointComesBack) {
  for (char32_t c = 0; c <= 0x10FFFF; c++) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string s;
    utf8_append(s, c);
    const Utf8Step step = utf8_step(s);
    ASSERT_EQ(step.status, Utf8Status::Valid) << static_cast<uint32_t>(c);
    ASSERT_EQ(step.length, s.size());
    ASSERT_EQ(utf8_decode(s), c);
    ASSERT_EQ(decode_strictly(s), c);
    for (size_t n = 1; n < s.size(); n++) {
      ASSERT_EQ(utf8_step(s.substr(0, n)).status, Utf8Status::Incomplete);
      ASSERT_EQ(utf8_step(s.substr(0, n)).length, n);
    }
  }
}

TEST(Utf8, RandomBytesAgreeWithTheStrictDecoder) {
  std::mt19937 rng(1);
  const std::string edges =
      "\x7f\x80\xbf\xc0\xc1\xc2\xdf\xe0\xed\xef\x9f\xa0\xf0\xf4\xf5\x8f\x90\xff"
      "a";
  for (int i = 0; i < 200000; i++) {
    std::string s;
    for (int n = 0; n < 4; n++) s += rng() % 2 ? edges[rng() % edges.size()] : static_cast<char>(rng());
    size_t expected = 0;
    for (size_t n = 1; n <= 4; n++)
      if (decode_strictly(std::string_view(s).substr(0, n))) expected = n;
    const Utf8Step step = utf8_step(s);
    ASSERT_EQ(step.status == Utf8Status::Valid ? step.length : 0, expected);
    ASSERT_NE(step.status, Utf8Status::Incomplete);  // four bytes are always enough to know
    ASSERT_GE(step.length, 1u);
  }
}

TEST(Utf8, InvalidPartsAreReplacedAsPythonDoes) {
  // bytes.decode("utf-8", "replace") of Python 3.11
  const std::pair<std::string, std::string> cases[] = {
      {"a\xff"
       "b",
       "a\uFFFDb"},
      {"\xe4\xb8", "\uFFFD"},
      {"\xe4\xb8x", "\uFFFDx"},
      {"\xf0\x9f\x98", "\uFFFD"},
      {"\xf0\x9f\x98\xf0\x9f\x98\x80", "\uFFFD\U0001F600"},
      {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xc0\x80", "\uFFFD\uFFFD"},
      {"\xe0\x80\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\x80\xbf", "\uFFFD\uFFFD"},
      {"\xf1\x80\x80\xe1\x80\xc2"
       "b",
       "\uFFFD\uFFFD\uFFFDb"},
      {"\xc3\xa9", "\u00e9"},
  };
  for (const auto& [in, out] : cases) EXPECT_EQ(replace_invalid_utf8(in), out);
}

TEST(Utf8, RunsCoverTheText) {
  std::mt19937 rng(2);
  for (int i = 0; i < 2000; i++) {
    const std::string text =
        random_text(rng, {"a", "\xff", "\u00e9", "\xe4", "\xb8", "\xad", "\U0001F600", "\xf0"}, 9);
    bool last = false, first = true;
    for (std::string_view rest = text; !rest.empty();) {
      bool valid = false;
      const size_t n = utf8_run(rest, &valid);
      ASSERT_GE(n, 1u);
      ASSERT_TRUE(first || valid != last);
      ASSERT_EQ(valid, replace_invalid_utf8(rest.substr(0, n)) == rest.substr(0, n));
      first = false, last = valid;
      rest.remove_prefix(n);
    }
  }
}

TEST(Utf8, NormalFormC) {
  EXPECT_EQ(to_nfc("cafe\u0301"), "caf\u00e9");
  EXPECT_EQ(to_nfc("\u212b\u1112\u1161\u11ab"), "\u00c5\ud55c");
  EXPECT_EQ(to_nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(to_nfc("\u0958"), "\u0915\u093c");  // excluded from composition
  EXPECT_EQ(to_nfc(std::string_view("a\0b", 3)), std::string_view("a\0b", 3));
  EXPECT_EQ(to_nfc(""), "");
}

TEST(Utf8, ClassesOfCharacters) {
  for (const char32_t c : {0x20, 0x09, 0x0D, 0x85, 0xA0, 0x2028, 0x3000, 0x205F})
    EXPECT_TRUE(is_white_space(c));
  for (const char32_t c : {0x180E, 0x200B, 0xFEFF, 0x41}) EXPECT_FALSE(is_white_space(c));
  for (const char32_t c : {0x41, 0x5F, 0x39, 0xE9, 0x301, 0x4E00, 0x200D, 0x24B6}) EXPECT_TRUE(is_word(c));
  for (const char32_t c : {0x20, 0x2D, 0x2460, 0xBD, 0x1F600}) EXPECT_FALSE(is_word(c));
}

}  // namespace
}  // namespace kv2
