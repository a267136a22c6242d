// SPDX-License-Identifier: Apache-2.0
// The name of a text in files and results.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace kv2 {

/// 32 hex digits of token ids, the same on every machine.
std::string hash_tokens(std::span<const int32_t> tokens);

}  // namespace kv2
