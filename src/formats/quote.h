// SPDX-License-Identifier: Apache-2.0
// quote: text of a file inside a message. Control characters are escaped and long text is cut, so that a
// message stays one short line whatever the file holds.
#pragma once

#include <string>
#include <string_view>

namespace kv2 {

/// 'text', at most 80 bytes of it, bytes outside printable ASCII as \xNN.
std::string quote(std::string_view text);

}  // namespace kv2
