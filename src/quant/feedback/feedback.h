// SPDX-License-Identifier: Apache-2.0
// The coder `feedback`: codes, scale and offset of a vector y chosen to make (y − ŷ)·G·(y − ŷ)ᵀ small, G the
// metric of whoever reads it, instead of the plain squared error. As in GPTQ, channel after channel: the
// error of a channel is handed on to those after it in the proportions F_ij = U_ij / U_ii of the Cholesky
// factor of G⁻¹ = UᵀU, which also diagonalises the metric:
//
//   sweep(z):  t_j = z_j − Σ_{i<j} t_i·F_ij          z·G·zᵀ = Σ_j t_j² / U_jj²
//
// Codes have 1 to 4 bits; the offset is stored or follows from the scale. Nothing here packs codes: a
// codec does (quant/int2/encode_head.h). The specification (feedback.cpp, docs/page-format.md) is scalar;
// encode_rows() (feedback_simd.cpp) is its Highway twin and gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float16.h"
#include "quant/coder.h"

namespace kv2::feedback {

inline constexpr int kMaxBits = 4;  // past that no code is worth choosing

using Offset = OffsetKind;  // Stored or Centred

struct Options {
  int head_dim = 0;
  int group = 0;  // channels that share one scale (and offset); a multiple of 4 that divides head_dim
  int bits = 2;   // 1 to kMaxBits
  Offset offset = Offset::Stored;
  FeedbackSearch search;

  int top() const { return (1 << bits) - 1; }
  int n_groups() const { return head_dim / group; }
};

Options options_of(int head_dim, const Coder& coder, int bits, Offset offset);

/// The best uniform step of a unit Gaussian for 2^bits levels (Max 1960, table II).
constexpr float unit_step(int bits) {
  constexpr float kSteps[] = {0, 1.596f, 0.9957f, 0.5860f, 0.3352f};
  return kSteps[bits];
}

/// KV2_CHECKs that the options fit together.
void check(const Options& options);

/// What 64 rows become, tokens innermost.
struct Columns {
  uint8_t* codes;          // [head_dim, 64], one per byte
  fp16* scale;             // [n_groups, 64]
  fp16* offset = nullptr;  // [n_groups, 64]; not written with Offset::Centred
  float* error = nullptr;  // [64]: (y − ŷ)·G·(y − ŷ)ᵀ as the coder sees it, or nullptr
};

/// One vector, the specification. x [d], codes [d] one per byte, scale and offset [n_groups]. `tables` of one
/// KV head. Returns the error.
float encode_vector(const bf16* x, const Options& options, const FeedbackTables& tables, uint8_t* codes,
                    fp16* scale, fp16* offset);
/// rows [64, d] bf16 with `row_stride` values between rows. Highway, run-time dispatch; bit-identical to
/// encode_vector on every target.
void encode_rows(const bf16* rows, size_t row_stride, const Options& options, const FeedbackTables& tables,
                 const Columns& out);
/// The same, scalar.
void encode_rows_reference(const bf16* rows, size_t row_stride, const Options& options,
                           const FeedbackTables& tables, const Columns& out);

}  // namespace kv2::feedback
