// SPDX-License-Identifier: Apache-2.0
// What both kernels of the coder `feedback` share: constants and roundings of the specification, 2 bits and a
// stored offset.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/kernels.h"

namespace kv2::cuda {

/// For the shapes that feedback_group.cu serves; false: it does not, nothing was launched.
bool launch_demote_feedback_group(Pool full, Pool packed, const DemotePage* pages, int n_pages,
                                  int n_kv_heads, int head_dim, int group, const FeedbackCoder& coder,
                                  cudaStream_t stream);

namespace feedback {

inline constexpr int kPage = 64;
inline constexpr float kTop = 3.0f, kHalfTop = 1.5f, kUnitStep = 0.9957f, kHuge = 0x1p40f;

__device__ __forceinline__ float half_within(float x, float low, float high) {
  const float clamped = x > low ? (x < high ? x : high) : low;
  return __half2float(__float2half_rn(clamped));
}
__device__ __forceinline__ float half_scale(float x) {
  return half_within(x, 0x1p-24f, 65504.0f);
}
__device__ __forceinline__ float half_offset(float x) {
  return half_within(x, -65504.0f, 65504.0f);
}

__device__ __forceinline__ uint16_t finite_bits(uint16_t x) {
  const uint16_t magnitude = x & 0x7fff;
  if (magnitude > 0x7f80) return 0;
  return static_cast<uint16_t>((x & 0x8000) | (magnitude > 0x7f7f ? 0x7f7f : magnitude));
}

}  // namespace feedback
}  // namespace kv2::cuda
