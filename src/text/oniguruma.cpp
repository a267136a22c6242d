// SPDX-License-Identifier: Apache-2.0
// Oniguruma's regular expressions in PCRE2's words. Rewritten: \s \S \w \W \b (other sets of characters), \h
// \H (hex digits there), \uHHHH. Refused: what both accept and mean differently (nested classes, "&&", (?m),
// {n}+, {,n}, …). Case folding is Unicode's simple one in PCRE2, so (?i) does not match "ß" with "ss".
#include <fmt/format.h>

#include "base/check.h"
#include "text/regex.h"
#include "text/utf8.h"

namespace kv2 {
namespace {

// White_Space; PCRE2's own \s has U+180E too, which left that property in Unicode 6.3
constexpr std::string_view kSpace = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kWord = R"(\p{L}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kHex = "0-9a-fA-F";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        class_character(c);
      } else if (c == '[') {
        open_class();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        quantifier();
      } else {
        copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw_error(ErrorCode::Unsupported, "pre-tokenizer pattern \"{}\": {} at byte {} is not supported",
                replace_invalid_utf8(in_), what, at_);
  }
  bool next_is(std::string_view s) const { return in_.substr(at_).starts_with(s); }
  void copy(size_t n) {
    out_ += in_.substr(at_, n);
    at_ += n;
  }
  void write_set(std::string_view set) {
    out_ += in_class_ ? std::string(set) : fmt::format("[{}]", set);
    at_ += 2;
  }
  void write_complement(std::string_view set) {
    if (in_class_) refuse("a complement inside a class");
    out_ += fmt::format("[^{}]", set);
    at_ += 2;
  }

  void escape() {
    if (at_ + 1 == in_.size()) refuse("a lone backslash");
    switch (in_[at_ + 1]) {
      case 's':
        return write_set(kSpace);
      case 'S':
        if (in_class_) return copy(2);  // differs from \S outside for U+180E alone
        return write_complement(kSpace);
      case 'w':
        return write_set(kWord);
      case 'W':
        return write_complement(kWord);
      case 'h':
        return write_set(kHex);
      case 'H':
        return write_complement(kHex);
      case 'b':
        if (in_class_) return copy(2);  // a backspace in both
        out_ += fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", kWord);
        at_ += 2;
        return;
      case 'u':
        return unicode_escape();
      case 'p':
      case 'P':
      case 'x':
        return copy_braced();
      case 'B':
      case 'K':
      case 'N':
      case 'O':
      case 'Q':
      case 'E':
      case 'y':
      case 'Y':
      case 'g':
      case 'k':
      case 'M':
      case 'C':
      case 'c':
        refuse(in_.substr(at_, 2));
      default:
        copy(2);
    }
  }

  void unicode_escape() {
    const std::string_view digits = in_.substr(at_ + 2, 4);
    if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
      refuse("\\u without four hex digits");
    out_ += fmt::format("\\x{{{}}}", digits);
    at_ += 6;
  }

  void copy_braced() {  // \p{L}, \x{85}: the brace is no quantifier
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{') return copy(2);
    const size_t close = in_.find('}', at_);
    if (close == std::string_view::npos) refuse("an open brace");
    copy(close + 1 - at_);
  }

  void open_class() {
    copy(1);
    in_class_ = true;
    if (next_is("^")) copy(1);
    if (next_is("]")) refuse("\"]\" as the first character of a class");
  }

  void class_character(char c) {
    if (c == '[') refuse("a class inside a class");
    if (next_is("&&")) refuse("an intersection of classes");
    if (c == ']') in_class_ = false;
    copy(1);
  }

  void group() {
    if (next_is("(*")) refuse("\"(*\"");
    if (!next_is("(?")) return copy(1);
    // flags: (?i) (?i: (?-i: (?m… — m is "dot matches all" in Ruby's syntax and anchors in Perl's
    const size_t flags_end = in_.find_first_not_of("imx-", at_ + 2);
    const std::string_view flags =
        in_.substr(at_ + 2, flags_end == std::string_view::npos ? 0 : flags_end - at_ - 2);
    if (flags.find_first_of("mx") != std::string_view::npos) refuse(in_.substr(at_, flags.size() + 2));
    const char kind = at_ + 2 < in_.size() ? in_[at_ + 2] : '\0';
    constexpr std::string_view kKnown = ":=!>i-";
    const bool lookbehind = next_is("(?<=") || next_is("(?<!");
    if (!lookbehind && kKnown.find(kind) == std::string_view::npos) refuse(in_.substr(at_, 3));
    copy(lookbehind ? 4 : 2);
  }

  void quantifier() {
    const size_t close = in_.find('}', at_);
    const std::string_view body = in_.substr(at_ + 1, close == std::string_view::npos ? 0 : close - at_ - 1);
    if (body.empty() || body[0] == ',' || body.find_first_not_of("0123456789,") != std::string_view::npos)
      refuse("\"{\" that is no quantifier {n}, {n,} or {n,m}");
    copy(body.size() + 2);
    if (next_is("+")) refuse("\"+\" behind {…}");  // possessive in Perl, a repetition in Ruby
    if (next_is("?") && body.find(',') == std::string_view::npos)
      refuse("\"?\" behind {n}");  // optional in Ruby
  }

  std::string_view in_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
};

}  // namespace

std::string pcre_from_oniguruma(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace kv2
