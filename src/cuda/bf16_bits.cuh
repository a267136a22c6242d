// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kv2::cuda {

/// base/float16.h's to_bf16: nearest even, NaN keeps its upper bits and becomes quiet.
__device__ __forceinline__ uint16_t to_bf16_bits(float x) {
  const uint32_t u = __float_as_uint(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

}  // namespace kv2::cuda
