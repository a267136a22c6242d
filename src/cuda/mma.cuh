// SPDX-License-Identifier: Apache-2.0
// The few PTX instructions of the attention kernel, one function each.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace kv2::cuda {

/// c += A·B, m16n8k16, f32 accumulators. A as in fragment.h; B: lane (g, t) holds rows 2t, 2t+1 and 2t+8,
/// 2t+9 of column g; C: rows g, g, g+8, g+8 of columns 2t, 2t+1, 2t, 2t+1.
__device__ __forceinline__ void mma_f16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                        uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_bf16(float (&c)[4], uint4 a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/// Transpose of an 8 × 8 matrix of halves held as C fragments hold it: the result is a B fragment's register.
__device__ __forceinline__ uint32_t transpose8x8(uint32_t x) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;\n" : "=r"(r) : "r"(x));
  return r;
}

__device__ __forceinline__ float exp2_fast(float x) {  // relative error 2^-22
  float r;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x));
  return r;
}

/// Two codes as halves: code·4^e(F)·2^-24, F-th field of a packed word. A subnormal's leading zeros cost the
/// tensor core bits of alignment (measured: fields left at bit 0 give 14 bits of product), so fields move to
/// bits 4 to 9.
template <int F>
__device__ __forceinline__ uint32_t field(uint32_t w) {
  if constexpr (F < 3)
    return (w << 4) & (0x00030003u << (2 * F + 4));
  else if constexpr (F < 5)
    return w & (0x00030003u << (2 * F));
  else
    return (w >> 6) & (0x00030003u << (2 * F - 6));
}
/// e(F)
__host__ __device__ constexpr int field_exponent(int f) {
  return f < 3 ? f + 2 : f < 5 ? f : f - 3;
}

/// 2^e, e in [-126, 127].
__device__ __forceinline__ float pow2(int e) {
  return __int_as_float((e + 127) << 23);
}

// ---- one warp's copies of whole packed pages from global to shared memory
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
inline constexpr bool kBulkCopies = true;
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void barrier_init(uint64_t* bar) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n" ::"r"(shared_address(bar)) : "memory");
}
__device__ __forceinline__ void barrier_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
__device__ __forceinline__ void fence_generic_before_async() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
/// By one lane.
__device__ __forceinline__ void copy_page(void* to, const void* from, uint32_t bytes, uint64_t* bar) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(bar)),
               "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(bar))
      : "memory");
}
__device__ __forceinline__ void wait_page(uint64_t* bar, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nretry:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra retry;\n}\n" ::"r"(shared_address(bar)),
      "r"(parity)
      : "memory");
}
#else
inline constexpr bool kBulkCopies = false;
__device__ __forceinline__ void copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}
#endif

}  // namespace kv2::cuda
