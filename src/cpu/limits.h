// SPDX-License-Identifier: Apache-2.0
// What this machine can do at most, for `kv2 bench limits`: loops of the very instructions that the kernels
// use.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kv2::cpu {

/// Multiply-adds of `rounds` rounds of independent f32 fused multiply-adds on one thread; what was summed
/// goes to `sink`, so that nothing is optimised away.
int64_t spin_f32(int64_t rounds, float* sink);
/// The same for the byte dot product (u8 · s8 into i32).
int64_t spin_int8(int64_t rounds, int32_t* sink);
/// The same for the bf16 dot product (into f32); 0 where the processor has none.
int64_t spin_bf16(int64_t rounds, float* sink);
/// Reads n bytes (a multiple of 512) once, 64 at a time.
void read_all(const void* memory, size_t n, int32_t* sink);

}  // namespace kv2::cpu
