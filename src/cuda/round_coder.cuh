// SPDX-License-Identifier: Apache-2.0
// Steps of the coder `round` (quant/int2/int2.cpp) that its kernels share; they are compiled with
// -fmad=false.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace kv2::cuda {

/// NaN counts as +0, infinities as the largest finite bf16.
__device__ inline uint16_t finite_bits(uint16_t x) {
  const uint16_t magnitude = x & 0x7fff;
  if (magnitude > 0x7f80) return 0;
  return static_cast<uint16_t>((x & 0x8000) | (magnitude > 0x7f7f ? 0x7f7f : magnitude));
}
__device__ inline float widen(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

struct Scaled {
  float scale, offset, inverse;  // inverse: of scale, rounded
  bool constant;
};

/// Steps 3 and 4: scale and offset, rounded; leaves them in `pair` as fp16.
__device__ inline Scaled scale_of(float mn, float mx, __half2* pair) {
  mn = __fadd_rn(mn, 0.0f);
  const float third = __fdiv_rn(__fsub_rn(mx, mn), 3.0f);
  const __half scale = __float2half_rn(fminf(fmaxf(third, 0x1p-24f), 65504.0f));
  const __half offset = __float2half_rn(fminf(fmaxf(mn, -65504.0f), 65504.0f));
  *pair = __halves2half2(scale, offset);
  const float s = __half2float(scale);
  return {s, __half2float(offset), __frcp_rn(s), mn == mx};
}

}  // namespace kv2::cuda
