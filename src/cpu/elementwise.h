// SPDX-License-Identifier: Apache-2.0
// SIMD loops over rows: norms, activations, rope, per-head matrices, conversions. Single-threaded; a row's
// bits depend on that row alone. Widths need not be multiples of a vector.
#pragma once

#include <cstddef>

#include "base/float16.h"
#include "ops/params.h"

namespace kv2::cpu {

void rms_norm_rows(const RmsNormParams& p, int first, int n);
void swiglu_rows(const SwigluParams& p, int first, int n);

/// cos and sin [head_dim / 2] of one position, angles in double.
void rope_angles(int64_t position, const float* inv_frequency, int head_dim, float* cosines, float* sines);
/// One row [n_heads, head_dim] in place.
void rope_row(float* x, int n_heads, int head_dim, RopePairing pairing, const float* cosines,
              const float* sines);

/// out[r] = (in[r] − mean)·matrix + add for n rows of d floats, 1 <= n <= 6; d a multiple of 16. mean, add
/// may be nullptr. scratch: 12·d floats. out may be in.
void multiply_heads(const float* const* in, float* const* out, int n, int d, const float* matrix,
                    const float* mean, const float* add, float* scratch);
void transpose_matrix(const float* in, int d, float* out);

/// Index of the largest of n values as ops/arg_max.h has it.
int32_t arg_max_of_row(const float* values, size_t n);

void to_bf16_row(const float* in, size_t n, bf16* out);
void from_bf16_row(const bf16* in, size_t n, float* out);

/// to = from (+ bias) (+ to), in this order. bias may be nullptr.
void store_row(const float* from, const float* bias, Accumulate accumulate, int n, float* to);

}  // namespace kv2::cpu
