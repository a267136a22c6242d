// SPDX-License-Identifier: Apache-2.0
// Texts of the user. What is no text is taken all the same, as a tokenizer takes it, but is said: nobody
// means to judge a model on a program.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kv2 {

/// read_file, with warn_unless_utf8.
std::string read_text_file(const std::string& path, size_t max_bytes);
/// A warning on stderr with `name` and the offset of the first byte that is not well-formed UTF-8.
void warn_unless_utf8(std::string_view name, std::string_view text);

}  // namespace kv2
