// SPDX-License-Identifier: Apache-2.0
#include "formats/quote.h"

#include <fmt/format.h>

namespace kv2 {

std::string quote(std::string_view text) {
  constexpr size_t kMax = 80;
  std::string out = "'";
  for (const char c : text.substr(0, kMax)) {
    if (c >= 0x20 && c < 0x7f)
      out += c;
    else
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  out += text.size() > kMax ? "…'" : "'";
  return out;
}

}  // namespace kv2
