// SPDX-License-Identifier: Apache-2.0
// Regular expressions of pre-tokenizers. They are written for Oniguruma (what Hugging Face's tokenizers uses)
// and run on PCRE2, so the few constructs that mean something else there are rewritten or refused. Steps and
// memory are limited.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kv2 {

/// The same language for PCRE2. Errors: Unsupported naming the construct.
std::string pcre_from_oniguruma(std::string_view pattern);

class Regex {
 public:
  /// Errors: Unsupported with the pattern and why it cannot be used.
  explicit Regex(std::string_view oniguruma_pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) = delete;

 private:
  friend class RegexSplitter;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

enum class Gaps : unsigned char { Keep, Drop };

/// The working memory of one thread for one Regex, which it must not outlive.
class RegexSplitter {
 public:
  explicit RegexSplitter(const Regex& regex);
  ~RegexSplitter();
  RegexSplitter(RegexSplitter&&) noexcept;
  RegexSplitter& operator=(RegexSplitter&&) = delete;

  /// Appends the matches and, with Gaps::Keep, what lies between them, in order; empty pieces are left out.
  /// `text` is well-formed UTF-8. Errors: BadArgument when a match takes more steps than any sane pattern
  /// does.
  void split(std::string_view text, Gaps gaps, std::vector<std::string_view>& pieces);

 private:
  bool find(std::string_view text, size_t from, size_t* begin, size_t* end);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kv2
