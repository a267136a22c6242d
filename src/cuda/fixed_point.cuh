// SPDX-License-Identifier: Apache-2.0
// Queries and softmax weights as integers of two 8-bit digits, so that tensor cores multiply them with codes
// exactly.
//
//   q        = step·(256·upper + lower), |upper| <= 127, lower signed; step: the head's largest value ÷ 32639
//   weight   = down·(256·upper + lower) of e·scale, both unsigned; e: relative to the page's own largest
//   logit
#pragma once

#include "cuda/attend_shape.cuh"

namespace kv2::cuda::attention {

/// A head's values of one query.
struct FixedPoint {
  float inverse, step;
  bool is_nan;
  /// `sum` of all values tells whether they are finite; a query that is not here is 0.
  __device__ FixedPoint(float largest, float sum, bool here) {
    constexpr float kTop = 32639.0f;  // 127·256 + 127
    const bool finite = largest < 3e38f && fabsf(sum) < INFINITY;
    inverse = here && finite && largest > 0x1p-100f ? __fdiv_rn(kTop, largest) : 0.0f;
    step = inverse > 0 ? __fdiv_rn(largest, kTop) : 0.0f;
    is_nan = here && !finite;
  }
  __device__ int of(float x) const { return __float2int_rn(x * inverse); }
};

/// The lower or the upper digits of four values.
__device__ __forceinline__ uint32_t digits(const int (&v)[4], bool lower) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int low = static_cast<int8_t>(v[i]);
    word |= (static_cast<uint32_t>(lower ? low : (v[i] - low) >> 8) & 0xffu) << (8 * i);
  }
  return word;
}

/// Units of a page's weights, from the bits of its largest scale of V. `up` leaves room for an e above 1, by
/// what the rounding of a logit makes of it.
struct WeightUnits {
  float up, down;
  __device__ explicit WeightUnits(uint32_t largest_scale_bits) {
    constexpr float kRoom = 63.0f / 64;
    const float scale = __half2float(__ushort_as_half(static_cast<uint16_t>(largest_scale_bits)));
    const int exponent = static_cast<int>(__float_as_uint(scale) >> 23) - 127;  // scale < 2^(exponent + 1)
    up = kRoom * pow2(15 - exponent);
    down = pow2(exponent - 15) * (1 / kRoom);
  }
};

}  // namespace kv2::cuda::attention
