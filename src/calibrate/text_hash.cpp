// SPDX-License-Identifier: Apache-2.0
#include "calibrate/text_hash.h"

#include <vector>

#include "base/hash.h"

namespace kv2 {

std::string hash_tokens(std::span<const int32_t> tokens) {
  std::vector<std::byte> bytes;  // little endian on every machine
  bytes.reserve(tokens.size() * 4);
  for (const int32_t t : tokens)
    for (int i = 0; i < 4; i++) bytes.push_back(static_cast<std::byte>(static_cast<uint32_t>(t) >> (8 * i)));
  Hash128 hash;
  hash.add(bytes);
  return hash.hex();
}

}  // namespace kv2
