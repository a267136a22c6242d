// SPDX-License-Identifier: Apache-2.0
// int2: two bits per value, one fp16 scale and offset per group of channels of one token and KV head.
// x̂ = scale·code + offset in fp32; codes are chosen from the already rounded scale and offset, so every
// reader sees the same x̂. scale·code is exact in fp32 (11 + 2 bits), so x̂ has one rounding and fma or not
// makes no difference.
//
// The specification (int2.cpp) is scalar; encode_rows() (int2_simd.cpp) is its Highway twin and gives the
// same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/float16.h"
#include "quant/coder.h"
#include "quant/page_layout.h"

namespace kv2::int2 {

/// KV2_CHECKs that head_dim, group (a multiple of 4 that divides it) and clip index fit together.
void check_shape(int head_dim, const Coder& coder);

/// One vector, the specification. x [d], codes [d] one per byte in 0..3, scale and offset [d / group].
void encode_vector(const bf16* x, int head_dim, const Coder& coder, uint8_t* codes, fp16* scale,
                   fp16* offset);
/// x̂ [d].
void decode_vector(const uint8_t* codes, const fp16* scale, const fp16* offset, int head_dim, int group,
                   float* x);

/// K or V of a head page: rows [64, d] bf16 with `row_stride` values between rows -> codes in canonical order
/// [64][d/4] (channel 4i+j of a token in bits 2j of byte i) and params [64][d/group]{scale, offset}.
/// Highway, run-time dispatch; bit-identical to encode_vector on every target.
void encode_rows(const bf16* rows, size_t row_stride, int head_dim, const Coder& coder, uint8_t* codes,
                 fp16* params);
/// The same, scalar.
void encode_rows_reference(const bf16* rows, size_t row_stride, int head_dim, const Coder& coder,
                           uint8_t* codes, fp16* params);
/// Canonical codes and params of 64 tokens -> x̂ [64, d] row-major.
void decode_rows(const uint8_t* codes, const fp16* params, int head_dim, int group, float* rows);

}  // namespace kv2::int2
