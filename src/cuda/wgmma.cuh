// SPDX-License-Identifier: Apache-2.0
// The PTX instructions of Hopper's warpgroups (sm_90a): products of bytes with B in shared memory, and
// registers that go from one warpgroup to another.
#pragma once

#include <cstdint>

namespace kv2::cuda {

/// How rows stand in shared memory: 16-byte pieces of a row of 128 (64) bytes change places with bits of
/// the row's number, address bits 4 to 6 (5) with 7 to 9 (8).
enum class Swizzle : uint32_t { Row128 = 1, Row64 = 2 };

/// A matrix of bytes, its rows along the sum: eight rows follow each other at once, groups of eight too. The
/// shuffle tells the compiler that all lanes have the same.
__device__ __forceinline__ uint64_t rows_descriptor(uint32_t shared_address, Swizzle swizzle) {
  const uint32_t group_bytes = swizzle == Swizzle::Row128 ? 1024 : 512;
  const uint32_t low = __shfl_sync(~0u, (shared_address & 0x3ffff) >> 4 | 1u << 16, 0);
  return static_cast<uint64_t>(group_bytes >> 4 | static_cast<uint32_t>(swizzle) << 30) << 32 | low;
}

__device__ __forceinline__ void wgmma_begin() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wgmma_end() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
/// Until `kPending` groups at most are on their way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

/// c += A·B or, without `add`, c = A·B: m64n64k32, A of signed or unsigned bytes from registers as
/// mma.m16n8k32 has it, B unsigned. c[4j..]: rows g, g, g + 8, g + 8 of columns 8j + 2t, + 1.
#define KV2_WGMMA_N64(a_type)                                                                                \
  asm volatile(                                                                                              \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"                                                       \
      "wgmma.mma_async.sync.aligned.m64n64k32.s32." a_type                                                   \
      ".u8 "                                                                                                 \
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%" \
      "27,%28,%29,%30,%31},"                                                                                 \
      "{%32,%33,%34,%35},%36,add;\n}\n"                                                                      \
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]), "+r"(c[4]), "+r"(c[5]), "+r"(c[6]), "+r"(c[7]),      \
        "+r"(c[8]), "+r"(c[9]), "+r"(c[10]), "+r"(c[11]), "+r"(c[12]), "+r"(c[13]), "+r"(c[14]),             \
        "+r"(c[15]), "+r"(c[16]), "+r"(c[17]), "+r"(c[18]), "+r"(c[19]), "+r"(c[20]), "+r"(c[21]),           \
        "+r"(c[22]), "+r"(c[23]), "+r"(c[24]), "+r"(c[25]), "+r"(c[26]), "+r"(c[27]), "+r"(c[28]),           \
        "+r"(c[29]), "+r"(c[30]), "+r"(c[31])                                                                \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)))
__device__ __forceinline__ void wgmma_signed(int (&c)[32], const uint32_t (&a)[4], uint64_t b, bool add) {
  KV2_WGMMA_N64("s8");
}
__device__ __forceinline__ void wgmma_unsigned(int (&c)[32], const uint32_t (&a)[4], uint64_t b, bool add) {
  KV2_WGMMA_N64("u8");
}
#undef KV2_WGMMA_N64
/// c += A·B or, without `add`, c = A·B: m64n32k32, A of unsigned bytes from registers as mma.m16n8k32 has it,
/// B unsigned. c[4j..]: rows g, g, g + 8, g + 8 of columns 8j + 2t, + 1.
__device__ __forceinline__ void wgmma_unsigned(int (&c)[16], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.u8 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},"
      "{%16,%17,%18,%19},%20,add;\n}\n"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]), "+r"(c[4]), "+r"(c[5]), "+r"(c[6]), "+r"(c[7]),
        "+r"(c[8]), "+r"(c[9]), "+r"(c[10]), "+r"(c[11]), "+r"(c[12]), "+r"(c[13]), "+r"(c[14]), "+r"(c[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
/// What this thread has written to shared memory is seen by wgmma after the next barrier.
__device__ __forceinline__ void fence_for_wgmma() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

}  // namespace kv2::cuda
