// KV2_CHECK: an invariant of kv2 itself, on in release builds too. Never for input: that throws kv2::Error
// with a code.
#pragma once

#include <fmt/format.h>

#include "kv2/error.h"

#define KV2_CHECK(cond, ...)                                                                          \
  do {                                                                                                \
    if (!(cond)) [[unlikely]]                                                                         \
      ::kv2::detail::check_failed(#cond, __FILE__, __LINE__, ::kv2::detail::check_text(__VA_ARGS__)); \
  } while (0)

namespace kv2 {

/// throw_error(code, "fmt {}", args...): the usual way to report a wrong world.
template <class... Args>
[[noreturn]] void throw_error(ErrorCode code, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(code, fmt::format(text, std::forward<Args>(args)...));
}

namespace detail {
inline std::string check_text() {
  return {};
}
template <class... Args>
std::string check_text(fmt::format_string<Args...> text, Args&&... args) {
  return fmt::format(text, std::forward<Args>(args)...);
}
[[noreturn]] inline void check_failed(const char* cond, const char* file, int line, const std::string& text) {
  throw Error(ErrorCode::Bug,
              fmt::format("bug: {} is false at {}:{}{}{}", cond, file, line, text.empty() ? "" : ": ", text));
}
}  // namespace detail
}  // namespace kv2
