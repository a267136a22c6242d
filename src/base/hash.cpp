// SPDX-License-Identifier: Apache-2.0
#include "base/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "base/check.h"

namespace kv2 {

uint64_t hash64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Hash128::Hash128() : state_(XXH3_createState()) {
  KV2_CHECK(state_ != nullptr);
  XXH3_128bits_reset(state_);
}
Hash128::~Hash128() {
  XXH3_freeState(state_);
}

void Hash128::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(state_, bytes.data(), bytes.size());
}

void Hash128::add_text(std::string_view text) {
  add(std::as_bytes(std::span(text)));
  add(std::as_bytes(std::span("", 1)));
}

std::string Hash128::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace kv2
