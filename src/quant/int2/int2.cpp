// SPDX-License-Identifier: Apache-2.0
// The specification of int2, scalar, in fp32 with one rounding per operation (no contraction; subnormals are
// kept). Per vector x [d] of bf16 (docs/page-format.md repeats these steps):
//   1. NaN counts as +0, ±infinity as ±0x1.FEp127 (largest finite bf16); widen to fp32 (exact).
//   2. clip_index i >= 0: t = element i of |x| ascending; x = clamp(x, -t, +t).
// and per group of channels:
//   3. mn, mx = smallest and largest x; mn = mn + 0 (a minimum of -0 becomes +0).
//   4. scale  = fp16(clamp((mx - mn) / 3, 2^-24, 65504))   nearest even; IEEE division
//      offset = fp16(clamp(mn, -65504, 65504))
//   5. code   = clamp(floor((x - offset) / scale + 0.5), 0, 3) with scale and offset widened back to fp32;
//      mn == mx: every code is 0.
//   x̂ = scale·code + offset.
// It does not vectorise: int2_simd.cpp does, with the same bits.
#include "quant/int2/int2.h"

#include <cmath>

#include "base/check.h"
#include "quant/clip.h"

namespace kv2::int2 {
namespace {

void encode_group(const float* x, int group, uint8_t* codes, fp16* scale, fp16* offset) {
  float mn = x[0], mx = x[0];
  for (int i = 1; i < group; ++i) {
    mn = std::min(mn, x[i]);
    mx = std::max(mx, x[i]);
  }
  mn = mn + 0.0f;
  // Both bounds are fp16 numbers, so clamping before the rounding equals clamping after it.
  *scale = to_fp16(std::clamp((mx - mn) / 3.0f, 0x1p-24f, 65504.0f));
  *offset = to_fp16(std::clamp(mn, -65504.0f, 65504.0f));
  const float s = to_float(*scale), o = to_float(*offset);
  for (int i = 0; i < group; ++i) {
    const float code = std::floor((x[i] - o) / s + 0.5f);
    codes[i] = mn == mx ? 0 : static_cast<uint8_t>(std::clamp(code, 0.0f, 3.0f));
  }
}

}  // namespace

void check_shape(int head_dim, const Coder& coder) {
  KV2_CHECK(head_dim > 0 && head_dim <= kMaxHeadDim, "head_dim {}", head_dim);
  KV2_CHECK(coder.group > 0 && coder.group % 4 == 0 && head_dim % coder.group == 0, "group {} of head_dim {}",
            coder.group, head_dim);
  KV2_CHECK(coder.clip_index >= -1 && coder.clip_index < head_dim, "clip index {}", coder.clip_index);
}

void encode_vector(const bf16* x, int head_dim, const Coder& coder, uint8_t* codes, fp16* scale,
                   fp16* offset) {
  check_shape(head_dim, coder);
  float values[kMaxHeadDim];
  for (int i = 0; i < head_dim; ++i) values[i] = to_float(finite(x[i]));
  clip({values, static_cast<size_t>(head_dim)}, coder.clip_index);
  for (int g = 0; g < head_dim / coder.group; ++g) {
    const int first = g * coder.group;
    encode_group(values + first, coder.group, codes + first, scale + g, offset + g);
  }
}

void decode_vector(const uint8_t* codes, const fp16* scale, const fp16* offset, int head_dim, int group,
                   float* x) {
  for (int g = 0; g < head_dim / group; ++g) {
    const float s = to_float(scale[g]), o = to_float(offset[g]);
    for (int i = g * group; i < (g + 1) * group; ++i) x[i] = s * static_cast<float>(codes[i]) + o;
  }
}

void encode_rows_reference(const bf16* rows, size_t row_stride, int head_dim, const Coder& coder,
                           uint8_t* codes, fp16* params) {
  check_shape(head_dim, coder);
  const int n_groups = head_dim / coder.group, row_bytes = head_dim / 4;
  uint8_t code[kMaxHeadDim];
  fp16 scale[kMaxHeadDim / 4], offset[kMaxHeadDim / 4];
  for (int token = 0; token < kPageTokens; ++token) {
    encode_vector(rows + token * row_stride, head_dim, coder, code, scale, offset);
    uint8_t* packed = codes + static_cast<size_t>(token) * row_bytes;
    for (int i = 0; i < row_bytes; ++i) {
      const uint8_t* c = code + 4 * i;
      packed[i] = static_cast<uint8_t>(c[0] | c[1] << 2 | c[2] << 4 | c[3] << 6);
    }
    fp16* pairs = params + static_cast<size_t>(token) * n_groups * 2;
    for (int g = 0; g < n_groups; ++g) {
      pairs[2 * g] = scale[g];
      pairs[2 * g + 1] = offset[g];
    }
  }
}

void decode_rows(const uint8_t* codes, const fp16* params, int head_dim, int group, float* rows) {
  check_shape(head_dim, {.group = group});
  const int n_groups = head_dim / group;
  for (int token = 0; token < kPageTokens; ++token) {
    const uint8_t* packed = codes + static_cast<size_t>(token) * (head_dim / 4);
    float* row = rows + static_cast<size_t>(token) * head_dim;
    for (int g = 0; g < n_groups; ++g) {
      const fp16* pair = params + (static_cast<size_t>(token) * n_groups + g) * 2;
      const float s = to_float(pair[0]), o = to_float(pair[1]);
      for (int i = g * group; i < (g + 1) * group; ++i) {
        row[i] = s * static_cast<float>(packed[i / 4] >> (2 * (i % 4)) & 3) + o;
      }
    }
  }
}

}  // namespace kv2::int2
