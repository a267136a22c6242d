// SPDX-License-Identifier: Apache-2.0
// The CPU's private layout of a head page (64 tokens, d channels), chosen so that attention never transposes:
// lanes are tokens for q·k and channels for p·v. Sizes are the canonical ones (quant/page_layout.h).
//
//   full     bf16  K [d][64]   V [64][d]
//   packed   K codes  [4][d/16][16 lanes][4]   byte (b, p, l, e), bits 2f: token 16b + l, channel 16p + 4f +
//   e
//            V codes  [d/16][4][16 lanes][4]   byte (b, p, l, e), bits 2f: channel 16b + l, token 16p + 4f +
//            e K params fp16 scale [groups][64], then offset [groups][64]; V params the same
//
// So one load of 64 bytes, three shifts and four masks are 4 x 64 codes as bytes; each lane of 32 bits holds
// four codes that meet the same four query values (or weights) in every lane: what a byte dot product takes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float16.h"
#include "quant/page_layout.h"

namespace kv2::cpu {

/// Rounds rows to bf16 and writes them at tokens [token, token + n) of a full head page. k, v: n rows of d
/// floats, `stride` floats apart.
void write_rows(std::byte* head_page, int head_dim, int token, int n, const float* k, const float* v,
                size_t stride);

/// K [d][64] of a full head page as rows [64][d].
void transpose_keys(const std::byte* head_page, int head_dim, bf16* rows);

/// Private <-> canonical.
void export_full(const std::byte* head_page, int head_dim, std::byte* canonical);
void import_full(std::byte* head_page, int head_dim, const std::byte* canonical);
void export_packed(const std::byte* head_page, const Int2Layout& layout, std::byte* canonical);
void import_packed(std::byte* head_page, const Int2Layout& layout, const std::byte* canonical);

/// Half a head page as floats for attention: keys [d][64] or values [64][d]. Halves go through one scratch,
/// so that it stays in the first cache (32 KiB at d = 128; both halves together, 64 KiB, cost twice the
/// time). Of a full page only the first n_tokens are read: later keys become 0, later rows of values are left
/// as they were (attention does not read them).
void expand_full_keys(const std::byte* head_page, int head_dim, int n_tokens, float* keys);
void expand_full_values(const std::byte* head_page, int head_dim, int n_tokens, float* values);
/// Of groups that packed_kernel.h does not read; plain code.
void expand_packed_keys(const std::byte* head_page, const Int2Layout& layout, float* keys);
void expand_packed_values(const std::byte* head_page, const Int2Layout& layout, float* values);

}  // namespace kv2::cpu
