// SPDX-License-Identifier: Apache-2.0
// Limits: a pattern of at most 64 KiB; per match 64 steps a byte of text plus a million, and 512 bytes of
// backtracking memory a byte of text plus 16 MiB, at most 1 GiB.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>

#include <algorithm>

#include "base/check.h"
#include "text/utf8.h"

namespace kv2 {
namespace {

constexpr size_t kMaxPatternBytes = 64 << 10;

std::string error_text(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Impl {
  std::string pattern;
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Impl() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view oniguruma_pattern) : impl_(std::make_unique<Impl>()) {
  if (oniguruma_pattern.size() > kMaxPatternBytes)
    throw_error(ErrorCode::Unsupported, "a pre-tokenizer pattern of {} bytes; at most {} are supported",
                oniguruma_pattern.size(), kMaxPatternBytes);
  impl_->pattern = pcre_from_oniguruma(oniguruma_pattern);
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  KV2_CHECK(context != nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int code = 0;
  PCRE2_SIZE at = 0;
  // MULTILINE: ^ and $ are line anchors in Oniguruma's default syntax
  impl_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(impl_->pattern.data()), impl_->pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &at, context);
  pcre2_compile_context_free(context);
  if (!impl_->code)
    throw_error(
        ErrorCode::Unsupported, "pre-tokenizer pattern \"{}\" cannot be used: {} at byte {} of \"{}\"",
        replace_invalid_utf8(oniguruma_pattern), error_text(code), at, replace_invalid_utf8(impl_->pattern));
  impl_->jit = pcre2_jit_compile(impl_->code, PCRE2_JIT_COMPLETE) == 0;  // same matches without, only slower
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

struct RegexSplitter::Impl {
  const Regex::Impl& regex;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  ~Impl() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
};

RegexSplitter::RegexSplitter(const Regex& regex) : impl_(new Impl{*regex.impl_}) {
  impl_->data = pcre2_match_data_create(1, nullptr);
  impl_->context = pcre2_match_context_create(nullptr);
  KV2_CHECK(impl_->data && impl_->context);
}
RegexSplitter::~RegexSplitter() = default;
RegexSplitter::RegexSplitter(RegexSplitter&&) noexcept = default;

bool RegexSplitter::find(std::string_view text, size_t from, size_t* begin, size_t* end) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int rc = PCRE2_ERROR_JIT_STACKLIMIT;
  if (impl_->regex.jit)
    rc = pcre2_match(impl_->regex.code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, impl_->data,
                     impl_->context);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT)  // the interpreter keeps its stack on the heap
    rc = pcre2_match(impl_->regex.code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                     impl_->data, impl_->context);
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc < 0)
    throw_error(ErrorCode::BadArgument, "the pre-tokenizer pattern \"{}\" gave up on a text of {} bytes: {}",
                replace_invalid_utf8(impl_->regex.pattern), text.size(), error_text(rc));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(impl_->data);
  if (ends[0] > ends[1] || ends[0] < from)
    throw_error(ErrorCode::Unsupported, "the pre-tokenizer pattern \"{}\" matches backwards",
                replace_invalid_utf8(impl_->regex.pattern));
  *begin = ends[0], *end = ends[1];
  return true;
}

void RegexSplitter::split(std::string_view text, Gaps gaps, std::vector<std::string_view>& pieces) {
  const auto add = [&](size_t begin, size_t end) {
    if (begin < end) pieces.push_back(text.substr(begin, end - begin));
  };
  const size_t steps = std::min<size_t>(1'000'000 + 64 * text.size(), UINT32_MAX);
  const size_t heap_kib = std::min<size_t>((16 << 10) + text.size() / 2, 1 << 20);
  pcre2_set_match_limit(impl_->context, static_cast<uint32_t>(steps));
  pcre2_set_depth_limit(impl_->context, static_cast<uint32_t>(steps));
  pcre2_set_heap_limit(impl_->context, static_cast<uint32_t>(heap_kib));
  size_t done = 0, from = 0, begin = 0, end = 0;
  while (from <= text.size() && find(text, from, &begin, &end)) {
    if (gaps == Gaps::Keep) add(done, begin);
    add(begin, end);
    done = end;
    // an empty match is a place to cut; the search goes on behind the next character
    from = begin < end ? end : end < text.size() ? end + utf8_step(text.substr(end)).length : text.size() + 1;
  }
  if (gaps == Gaps::Keep) add(done, text.size());
}

}  // namespace kv2
