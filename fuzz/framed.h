// SPDX-License-Identifier: Apache-2.0
// Two forms of a safetensors input. As it is; or, when it begins with '{', as the header's text up to the
// first zero byte and the data behind it: the length in front is then written here, so that the fuzzer can
// change the text freely.
#pragma once

#include <cstring>
#include <vector>

#include "fuzz.h"

namespace kv2::fuzz {

inline std::vector<std::byte> framed(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (size == 0 || data[0] != '{') return {bytes.begin(), bytes.end()};
  const void* zero = std::memchr(data, 0, size);
  const uint64_t n = zero ? static_cast<const uint8_t*>(zero) - data : size;
  std::vector<std::byte> out(sizeof n);
  std::memcpy(out.data(), &n, sizeof n);
  out.insert(out.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n));
  if (zero) out.insert(out.end(), bytes.begin() + static_cast<ptrdiff_t>(n) + 1, bytes.end());
  return out;
}

}  // namespace kv2::fuzz
