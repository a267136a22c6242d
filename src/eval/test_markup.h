// SPDX-License-Identifier: Apache-2.0
// A check that markup is well-formed as XML is: every tag closed in order, attributes quoted, no stray < or
// &. For tests only.
#pragma once

#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace kv2::testing {

/// What is wrong, "" where nothing is. A <!DOCTYPE …> and what stands in <style> are passed over.
inline std::string unbalanced(std::string_view text) {
  std::vector<std::string> open;
  for (size_t i = 0; i < text.size(); i++) {
    if (text[i] == '&') {
      const size_t end = text.find(';', i);
      if (end == text.npos || end - i > 8) return "a bare & at " + std::string(text.substr(i, 30));
      continue;
    }
    if (text[i] == '>') return "a bare > at " + std::string(text.substr(i, 30));
    if (text[i] != '<') continue;
    if (text.substr(i).starts_with("<!DOCTYPE")) {
      i = text.find('>', i);
      continue;
    }
    size_t end = i;
    bool quoted = false;
    for (end = i + 1; end < text.size() && (quoted || text[end] != '>'); end++) {
      if (text[end] == '"') quoted = !quoted;
      if (text[end] == '<') return "a < inside a tag at " + std::string(text.substr(i, 40));
    }
    if (end >= text.size()) return "a tag without end: " + std::string(text.substr(i, 40));
    const std::string_view tag = text.substr(i + 1, end - i - 1);
    const bool closing = tag.starts_with('/'), alone = tag.ends_with('/');
    size_t n = closing ? 1 : 0;
    while (n < tag.size() && (std::isalnum(static_cast<unsigned char>(tag[n])) || tag[n] == '-')) n++;
    const std::string name(tag.substr(closing ? 1 : 0, n - (closing ? 1 : 0)));
    if (name.empty()) return "no tag: " + std::string(text.substr(i, 40));
    if (closing) {
      if (open.empty() || open.back() != name)
        return "</" + name + "> closes " + (open.empty() ? "nothing" : "<" + open.back() + ">");
      open.pop_back();
    } else if (!alone) {
      open.push_back(name);
      if (name == "style") end = text.find("</style>", end) - 1;
    }
    i = end;
  }
  return open.empty() ? "" : "<" + open.back() + "> is never closed";
}

}  // namespace kv2::testing
