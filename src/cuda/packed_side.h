// SPDX-License-Identifier: Apache-2.0
// One side (K or V) of a layer's packed page in another format than int2 head pages, as kernels see it: the
// canonical bytes of quant/affine, quant/channel and quant/bf16. Host and device code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kv2::cuda {

struct PackedSide {
  enum Codec : int32_t { kRows, kAffine, kChannel };
  enum Offset : int32_t { kStored, kCentred, kSymmetric };

  Codec codec;
  Offset offset;
  int32_t bits, group;
  bool norm;           // channel: [64] fp32 at the beginning of the side
  size_t begin;        // of the side, from the start of a packed page
  size_t first_head;   // of the first KV head, from `begin`
  size_t head_bytes;   // of a KV head
  size_t codes_bytes;  // of its codes; params follow

#ifdef __CUDACC__
  __host__ __device__ int params() const {
    return offset == kStored ? 2 : 1;
  }  // of a group
  __host__ __device__ int top() const {
    return (1 << bits) - 1;
  }
  /// -zero·scale where the offset is not stored.
  __host__ __device__ float implied_offset(float scale) const {
    const float levels = static_cast<float>(1 << bits);
    return offset == kSymmetric ? -(levels / 2) * scale : -((levels - 1) / 2) * scale;
  }
#endif
};

}  // namespace kv2::cuda
