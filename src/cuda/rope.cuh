// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kv2::cuda {

/// The angle is a product in double: at position 131071 a float product is off by up to 4e-3 radians.
__device__ __forceinline__ float2 rope_angle(double position, float inv_frequency) {
  double s, c;
  sincos(position * inv_frequency, &s, &c);
  return {static_cast<float>(c), static_cast<float>(s)};
}
__device__ __forceinline__ void rope_rotate(float& a, float& b, float2 angle) {
  const float x = a, y = b;
  a = fmaf(x, angle.x, -(y * angle.y));
  b = fmaf(x, angle.y, y * angle.x);
}

}  // namespace kv2::cuda
