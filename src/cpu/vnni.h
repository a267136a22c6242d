// SPDX-License-Identifier: Apache-2.0
// AVX512-VNNI as a target of its own: Highway 1.0.3 has none (its AVX3_DL asks the compiler for the VEX
// form). Bodies that use dot-inl.h are compiled a second time for it, inside Highway's AVX3 namespace.
#pragma once

#include <cstdint>

namespace kv2::cpu {

/// Beside Highway's numbers in simd_targets().
inline constexpr int64_t kAvx3Vnni = int64_t{1} << 62;

/// The processor has it, and no other target is forced.
bool use_vnni();
bool processor_has_vnni();
/// For force_simd_target alone.
void set_use_vnni(bool use);

}  // namespace kv2::cpu
