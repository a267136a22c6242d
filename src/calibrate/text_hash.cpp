// SPDX-License-Identifier: Apache-2.0
#include "calibrate/text_hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <vector>

namespace kv2 {

std::string hash_tokens(std::span<const int32_t> tokens) {
  std::vector<uint8_t> bytes;  // little endian on every machine
  bytes.reserve(tokens.size() * 4);
  for (const int32_t t : tokens)
    for (int i = 0; i < 4; i++) bytes.push_back(static_cast<uint8_t>(static_cast<uint32_t>(t) >> (8 * i)));
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace kv2
