// SPDX-License-Identifier: Apache-2.0
// The few PTX instructions of the attention kernel, one function each.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace kv2::cuda {

/// Whether B holds digits with or without a sign.
enum class Digits { Signed, Unsigned };

/// c += A·B or c = A·B, m16n8k32, codes times digits, exact. A as in fragment.h; B: lane (g, t) holds rows
/// 4t..4t+3 and 4t+16..+19 of column g; C: rows g, g, g+8, g+8 of columns 2t, 2t+1, 2t, 2t+1.
template <Digits kDigits>
__device__ __forceinline__ void mma_codes(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                          uint32_t b0, uint32_t b1) {
  if constexpr (kDigits == Digits::Signed)
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/// Half a step: 16 columns of A, registers 0 and 1.
__device__ __forceinline__ void mma_codes_half(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};\n"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b0));
}
__device__ __forceinline__ void mma_bf16(float (&c)[4], uint4 a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
/// The same on halves.
__device__ __forceinline__ void mma_half(float (&c)[4], uint4 a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
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

__device__ __forceinline__ float reciprocal_fast(float x) {  // 1 ulp
  float r;
  asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x));
  return r;
}

/// Four codes as bytes, times 4^F: the F-th fragment of a packed word.
template <int F>
__device__ __forceinline__ uint32_t field(uint32_t w) {
  return w & (0x03030303u << (2 * F));
}

/// 2^e, e in [-126, 127].
__device__ __forceinline__ float pow2(int e) {
  return __int_as_float((e + 127) << 23);
}

// ---- copies of pages from global to shared memory, and the barriers in shared memory that tell of them
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void barrier_init(uint64_t* bar, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(shared_address(bar)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive_barrier(uint64_t* bar) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(shared_address(bar))
               : "memory");
}
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
inline constexpr bool kBulkCopies = true;
__device__ __forceinline__ void barrier_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
/// Arrives, too.
__device__ __forceinline__ void expect_bytes(uint64_t* bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(bar)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_bytes(void* to, const void* from, uint32_t bytes, uint64_t* bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(bar))
      : "memory");
}
/// Copies that this thread starts afterwards may read what was stored before, here or, if this thread knows
/// of it, elsewhere, and write over what was read.
__device__ __forceinline__ void fence_for_copies() {
  asm volatile("fence.proxy.async;\n" ::: "memory");
}
/// By one lane.
__device__ __forceinline__ void copy_page(void* to, const void* from, uint32_t bytes, uint64_t* bar) {
  expect_bytes(bar, bytes);
  copy_bytes(to, from, bytes, bar);
}
__device__ __forceinline__ void wait_barrier(uint64_t* bar, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nretry:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra retry;\n}\n" ::"r"(shared_address(bar)),
      "r"(parity)
      : "memory");
}
#else
inline constexpr bool kBulkCopies = false;
__device__ __forceinline__ void barrier_fence() {}
__device__ __forceinline__ void copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(shared_address(to)), "l"(from) : "memory");
}
/// Counts as this thread's arrival when its copies so far are there.
__device__ __forceinline__ void arrive_after_copies(uint64_t* bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(shared_address(bar)) : "memory");
}
__device__ __forceinline__ void wait_barrier(uint64_t* bar, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nretry:\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra retry;\n}\n" ::"r"(shared_address(bar)),
      "r"(parity)
      : "memory");
}
#endif

}  // namespace kv2::cuda
