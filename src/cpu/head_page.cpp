// SPDX-License-Identifier: Apache-2.0
// Layout conversions of a head page that are not in a hot loop: plain code, exact moves of bits.
#include "cpu/head_page.h"

#include <algorithm>
#include <cstring>

namespace kv2::cpu {
namespace {

const uint8_t* bytes_at(const std::byte* page, size_t offset) {
  return reinterpret_cast<const uint8_t*>(page + offset);
}
uint8_t* bytes_at(std::byte* page, size_t offset) {
  return reinterpret_cast<uint8_t*>(page + offset);
}
const fp16* params_at(const std::byte* page, size_t offset) {
  return reinterpret_cast<const fp16*>(page + offset);
}
fp16* params_at(std::byte* page, size_t offset) {
  return reinterpret_cast<fp16*>(page + offset);
}

// Canonical params are [64][groups]{scale, offset}; private ones scale [groups][64], offset [groups][64].
void export_params(const fp16* from, int groups, fp16* to) {
  for (int t = 0; t < kPageTokens; t++)
    for (int g = 0; g < groups; g++) {
      to[2 * (t * groups + g)] = from[g * kPageTokens + t];
      to[2 * (t * groups + g) + 1] = from[(groups + g) * kPageTokens + t];
    }
}
void import_params(fp16* to, int groups, const fp16* from) {
  for (int t = 0; t < kPageTokens; t++)
    for (int g = 0; g < groups; g++) {
      to[g * kPageTokens + t] = from[2 * (t * groups + g)];
      to[(groups + g) * kPageTokens + t] = from[2 * (t * groups + g) + 1];
    }
}

/// Where the code of (row, column) lies: rows are tokens of K or channels of V, columns the others.
struct CodePlace {
  size_t byte;
  int shift;
};
CodePlace place(int row, int column, int n_columns) {
  const int p = column / 16, f = column % 16 / 4, e = column % 4;
  return {static_cast<size_t>((row / 16 * (n_columns / 16) + p) * 64 + row % 16 * 4 + e), 2 * f};
}

// A token's canonical byte holds 4 channels.
void export_codes(const uint8_t* k, const uint8_t* v, int d, uint8_t* k_out, uint8_t* v_out) {
  for (int t = 0; t < kPageTokens; t++)
    for (int b = 0; b < d / 4; b++) {
      unsigned k_byte = 0, v_byte = 0;
      for (int j = 0; j < 4; j++) {
        const CodePlace at_k = place(t, 4 * b + j, d), at_v = place(4 * b + j, t, kPageTokens);
        k_byte |= (k[at_k.byte] >> at_k.shift & 3u) << (2 * j);
        v_byte |= (v[at_v.byte] >> at_v.shift & 3u) << (2 * j);
      }
      k_out[t * (d / 4) + b] = static_cast<uint8_t>(k_byte);
      v_out[t * (d / 4) + b] = static_cast<uint8_t>(v_byte);
    }
}
void import_codes(uint8_t* k, uint8_t* v, int d, const uint8_t* k_in, const uint8_t* v_in) {
  std::memset(k, 0, static_cast<size_t>(kPageTokens) * d / 4);
  std::memset(v, 0, static_cast<size_t>(kPageTokens) * d / 4);
  for (int t = 0; t < kPageTokens; t++)
    for (int b = 0; b < d / 4; b++) {
      const unsigned k_byte = k_in[t * (d / 4) + b], v_byte = v_in[t * (d / 4) + b];
      for (int j = 0; j < 4; j++) {
        const CodePlace at_k = place(t, 4 * b + j, d), at_v = place(4 * b + j, t, kPageTokens);
        k[at_k.byte] = static_cast<uint8_t>(k[at_k.byte] | (k_byte >> (2 * j) & 3u) << at_k.shift);
        v[at_v.byte] = static_cast<uint8_t>(v[at_v.byte] | (v_byte >> (2 * j) & 3u) << at_v.shift);
      }
    }
}

}  // namespace

void write_rows(std::byte* head_page, int head_dim, int token, int n, const float* k, const float* v,
                size_t stride) {
  auto* keys = reinterpret_cast<bf16*>(head_page);
  auto* values = keys + static_cast<size_t>(kPageTokens) * head_dim + static_cast<size_t>(token) * head_dim;
  for (int c = 0; c < head_dim; c++)
    for (int i = 0; i < n; i++) keys[c * kPageTokens + token + i] = to_bf16(k[i * stride + c]);
  for (int i = 0; i < n; i++)
    for (int c = 0; c < head_dim; c++) values[i * head_dim + c] = to_bf16(v[i * stride + c]);
}

void transpose_keys(const std::byte* head_page, int head_dim, bf16* rows) {
  const auto* keys = reinterpret_cast<const bf16*>(head_page);
  for (int t0 = 0; t0 < kPageTokens; t0 += 8)
    for (int c = 0; c < head_dim; c++)
      for (int t = t0; t < t0 + 8; t++) rows[t * head_dim + c] = keys[c * kPageTokens + t];
}

void export_full(const std::byte* head_page, int head_dim, std::byte* canonical) {
  const size_t half = sizeof(bf16) * kPageTokens * static_cast<size_t>(head_dim);
  transpose_keys(head_page, head_dim, reinterpret_cast<bf16*>(canonical));
  std::memcpy(canonical + half, head_page + half, half);
}

void import_full(std::byte* head_page, int head_dim, const std::byte* canonical) {
  const size_t half = sizeof(bf16) * kPageTokens * static_cast<size_t>(head_dim);
  auto* keys = reinterpret_cast<bf16*>(head_page);
  const auto* rows = reinterpret_cast<const bf16*>(canonical);
  for (int c = 0; c < head_dim; c++)
    for (int t = 0; t < kPageTokens; t++) keys[c * kPageTokens + t] = rows[t * head_dim + c];
  std::memcpy(head_page + half, canonical + half, half);
}

void export_packed(const std::byte* head_page, const Int2Layout& layout, std::byte* canonical) {
  export_codes(bytes_at(head_page, layout.k_codes()), bytes_at(head_page, layout.v_codes()), layout.head_dim,
               bytes_at(canonical, layout.k_codes()), bytes_at(canonical, layout.v_codes()));
  for (const size_t at : {layout.k_params(), layout.v_params()})
    export_params(params_at(head_page, at), layout.n_groups(), params_at(canonical, at));
}

void import_packed(std::byte* head_page, const Int2Layout& layout, const std::byte* canonical) {
  import_codes(bytes_at(head_page, layout.k_codes()), bytes_at(head_page, layout.v_codes()), layout.head_dim,
               bytes_at(canonical, layout.k_codes()), bytes_at(canonical, layout.v_codes()));
  for (const size_t at : {layout.k_params(), layout.v_params()})
    import_params(params_at(head_page, at), layout.n_groups(), params_at(canonical, at));
}

// x̂ = scale·code + offset in one rounding; scale·code is exact.
void expand_packed_keys(const std::byte* head_page, const Int2Layout& layout, float* keys) {
  const uint8_t* codes = bytes_at(head_page, layout.k_codes());
  const fp16* params = params_at(head_page, layout.k_params());
  for (int c = 0; c < layout.head_dim; c++)
    for (int t = 0; t < kPageTokens; t++) {
      const CodePlace at = place(t, c, layout.head_dim);
      const int g = c / layout.group;
      keys[c * kPageTokens + t] =
          to_float(params[g * kPageTokens + t]) * static_cast<float>(codes[at.byte] >> at.shift & 3) +
          to_float(params[(layout.n_groups() + g) * kPageTokens + t]);
    }
}
void expand_packed_values(const std::byte* head_page, const Int2Layout& layout, float* values) {
  const uint8_t* codes = bytes_at(head_page, layout.v_codes());
  const fp16* params = params_at(head_page, layout.v_params());
  for (int t = 0; t < kPageTokens; t++)
    for (int c = 0; c < layout.head_dim; c++) {
      const CodePlace at = place(c, t, kPageTokens);
      const int g = c / layout.group;
      values[t * layout.head_dim + c] =
          to_float(params[g * kPageTokens + t]) * static_cast<float>(codes[at.byte] >> at.shift & 3) +
          to_float(params[(layout.n_groups() + g) * kPageTokens + t]);
    }
}

}  // namespace kv2::cpu
