// SPDX-License-Identifier: Apache-2.0
// Products of rows with weights that stay in memory as their file codes them: w = scale·(code − zero) +
// offset per block of inputs. Rows become 16-bit fixed point, one unit per block: codes times rows are exact
// integer sums, scaled once per block, and blocks are added in order. A row's bits depend on that row alone,
// on every SIMD target the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/backend.h"

namespace kv2::cpu {

// clang-format off
//
// Weights are stored in strips of 16 outputs, a strip block by block of its inputs; in a block of 32 inputs
// (of 16: half as many vectors), every vector is [16 outputs][4 inputs]:
//
//   4 bits   4 vectors, v: low nibbles are inputs 8v … 8v+3, high nibbles 8v+4 … 8v+7
//   6 bits   the same for the low four bits, then 2 vectors, v: bits 2f are the high bits of inputs 16v+4f … 16v+4f+3
//   8 bits   8 vectors, v: inputs 4v … 4v+3
//
// then scale [16] and, where the format has one, offset [16], in fp16 where that holds them exactly, else in float.
//
// clang-format on
struct StripShape {
  int n_in = 0, n_out = 0;
  int bits = 4, block = 32, zero = 0;
  bool has_offset = false, half_params = true;

  static StripShape of(int n_in, int n_out, const WeightCodes& c) {
    return {.n_in = n_in,
            .n_out = n_out,
            .bits = c.bits,
            .block = c.block,
            .zero = c.zero,
            .has_offset = c.has_offset,
            .half_params = c.params_in_fp16};
  }
  int n_blocks() const { return n_in / block; }
  int n_strips() const { return (n_out + 15) / 16; }
  size_t code_bytes() const { return static_cast<size_t>(block) * 2 * static_cast<size_t>(bits); }
  size_t param_bytes() const { return half_params ? 32 : 64; }
  size_t block_bytes() const { return code_bytes() + param_bytes() * (has_offset ? 2 : 1); }
  size_t strip_bytes() const { return static_cast<size_t>(n_blocks()) * block_bytes(); }
};

/// Rows as the kernel takes them.
struct CodedRows {
  int8_t* halves;  // [n_rows][2][n_in] high bytes, low bytes: x ≈ unit·(256·high + low)
  float* unit;     // [n_rows, n_blocks]
  float* sum;      // [n_rows, n_blocks] Σx
  int32_t* whole;  // [n_rows, n_blocks] Σ(256·high + low)

  static size_t bytes(int n_rows, int n_in, int n_blocks) {
    return static_cast<size_t>(n_rows) *
               (2 * static_cast<size_t>(n_in) + 12 * static_cast<size_t>(n_blocks)) +
           256;
  }
  static CodedRows at(std::byte* memory, int n_rows, int n_in, int n_blocks) {
    const size_t n = static_cast<size_t>(n_rows), parts = n * static_cast<size_t>(n_blocks);
    std::byte* unit = memory + (n * 2 * static_cast<size_t>(n_in) + 63) / 64 * 64;
    return {reinterpret_cast<int8_t*>(memory), reinterpret_cast<float*>(unit),
            reinterpret_cast<float*>(unit) + parts, reinterpret_cast<int32_t*>(unit) + 2 * parts};
  }
};

/// One row of n_in floats into row `row` of `to`. block is a multiple of 16.
void code_row(const float* in, int n_in, int block, const CodedRows& to, int row);

/// Where a strip's products go: row r of the call to [r·stride, r·stride + columns), columns 16 at most.
struct StripOutput {
  float* to;
  size_t stride;
  int columns;
  const float* bias;  // [columns] or nullptr
  Accumulate accumulate;
};
/// Rows [first, first + n_rows) times one strip.
void multiply_strip(const StripShape& shape, const std::byte* strip, const CodedRows& x, int first,
                    int n_rows, const StripOutput& out);

/// Packs rows [0, 16) of a strip: codes [16, n_in], scale and offset [16, n_blocks]; n < 16: the others are
/// zero.
void pack_strip(const StripShape& shape, int n, const uint8_t* codes, const float* scale, const float* offset,
                std::byte* strip);

}  // namespace kv2::cpu
