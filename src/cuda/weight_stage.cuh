// SPDX-License-Identifier: Apache-2.0
// What linears of few rows share: stages of 16 rows of weights and 64 inputs in shared memory, their
// fragments, and where sums go.
#pragma once

#include <cuda_bf16.h>

#include "cuda/kernels.h"

namespace kv2::cuda {

struct WeightStage {
  static constexpr int kK = 64, kSteps = kK / 16;
  static constexpr int kRowBytes = kK * 2 + 16;  // 16 more than needed: ldmatrix without bank conflicts
  static constexpr int kBytes = 16 * kRowBytes;

  static __device__ __forceinline__ uint32_t address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
  }
  static __device__ __forceinline__ void copy(uint32_t to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n" ::"r"(to), "l"(from) : "memory");
  }
  static __device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
  template <int kPending>
  static __device__ __forceinline__ void wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
  }
  /// A fragments of the four steps.
  static __device__ __forceinline__ void read(uint32_t stage, int lane, uint4 (&a)[kSteps]) {
    const uint32_t at = stage + (lane % 16) * kRowBytes + (lane / 16) * 16;
#pragma unroll
    for (int s = 0; s < kSteps; s++)
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(a[s].x), "=r"(a[s].y), "=r"(a[s].z), "=r"(a[s].w)
                   : "r"(at + s * 32)
                   : "memory");
  }
  /// The B fragment's words of a row and step; zero past the last row. x: LinearInputs in fragments.
  static __device__ __forceinline__ uint2 read_x(uint32_t x, int step, int row, int n_rows, int t) {
    uint2 b{0, 0};
    if (row < n_rows)
      asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];\n"
                   : "=r"(b.x), "=r"(b.y)
                   : "r"(x + ((step * n_rows + row) * 4 + t) * 8)
                   : "memory");
    return b;
  }
};

/// Sums of 16 outputs and 8 rows, as mma leaves them.
__device__ __forceinline__ void write_outputs(const FewRows& p, int first_output, int first_row, int lane,
                                              const float (&c)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int output = first_output + lane / 4 + 8 * (i / 2), row = first_row + 2 * (lane % 4) + i % 2;
    if (output >= p.n_out || row >= p.n_rows) continue;
    float value = c[i];
    if (p.bias) value = __fadd_rn(value, p.bias[output]);
    float* to = p.out + static_cast<size_t>(row) * p.n_out + output;
    *to = p.accumulate ? __fadd_rn(*to, value) : value;
  }
}

}  // namespace kv2::cuda
