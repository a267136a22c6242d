// SPDX-License-Identifier: Apache-2.0
#include "text/text_file.h"

#include <fmt/format.h>

#include "base/file.h"
#include "base/log.h"
#include "text/utf8.h"

namespace kv2 {

std::string read_text_file(const std::string& path, size_t max_bytes) {
  std::string text = read_file(path, max_bytes);
  warn_unless_utf8(path, text);
  return text;
}

void warn_unless_utf8(std::string_view name, std::string_view text) {
  bool valid = true;
  const size_t n = utf8_run(text, &valid);
  if (valid && n == text.size()) return;
  log_warning(fmt::format("{} is not valid UTF-8, first at byte {} of {}: is it a text?", name, valid ? n : 0,
                          text.size()));
}

}  // namespace kv2
