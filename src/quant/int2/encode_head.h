// SPDX-License-Identifier: Apache-2.0
// int2 codes of K or V of one head page by any coder: what a backend's demote calls. `coder.tables` must be
// host memory here.
#pragma once

#include "quant/int2/int2.h"

namespace kv2::int2 {

/// rows [64, d] bf16 with `row_stride` values between rows -> canonical codes and params (see encode_rows).
/// Vectorised; the same bits as the reference.
void encode_head(const bf16* rows, size_t row_stride, int head_dim, const Coder& coder, int kv_head,
                 uint8_t* codes, fp16* params);
/// The same, scalar.
void encode_head_reference(const bf16* rows, size_t row_stride, int head_dim, const Coder& coder, int kv_head,
                           uint8_t* codes, fp16* params);

}  // namespace kv2::int2
