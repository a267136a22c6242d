// SPDX-License-Identifier: Apache-2.0
// Which SIMD targets this folder is compiled for: AVX2 with FMA and AVX-512 on x86, NEON on Arm. Include
// before foreach_target.h. Vectors of scalable size (SVE) cannot be array elements and are left out.
#pragma once

#include <hwy/detect_targets.h>

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS                                                                     \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_WASM | \
   HWY_WASM_EMU256)
