// SPDX-License-Identifier: Apache-2.0
// Hash128: XXH3-128 over pieces, for names of things by their bytes: models, calibrations, texts; hash64 of
// one piece. They find damage, not malice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace kv2 {

uint64_t hash64(std::span<const std::byte> bytes);

class Hash128 {
 public:
  Hash128();
  ~Hash128();
  Hash128(const Hash128&) = delete;
  Hash128& operator=(const Hash128&) = delete;

  void add(std::span<const std::byte> bytes);
  void add_text(std::string_view text);  // and a zero, so that "ab", "c" differs from "a", "bc"
  /// 32 hexadecimal digits of everything added.
  std::string hex() const;

 private:
  XXH3_state_s* state_;
};

}  // namespace kv2
