// SPDX-License-Identifier: Apache-2.0
// The quantizer without the engine: 64 rows of K or of V on host memory to 2-bit codes and back, in the
// canonical form of docs/page-format.md, the same bits that a cache stores. Standard types only; thread-safe;
// nothing is kept.
//
//   const kv2::QuantOptions options{.head_dim = 128, .clip = 0.92f};
//   std::vector<float> rows = ...;                               // [64, 128]
//   kv2::rotate_hadamard(rows, options.head_dim);                // optional: spreads outliers over the
//   channels std::vector<uint8_t> codes(kv2::codes_size(options));        // 2,048 bytes
//   std::vector<uint16_t> params(kv2::params_size(options));     // 128 fp16 numbers
//   kv2::encode_page(rows, options, codes, params);              // 2.25 bits per element
//   kv2::decode_page(codes, params, options, rows);              // x̂ = scale·code + offset
//   kv2::unrotate_hadamard(rows, options.head_dim);
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kv2 {

struct QuantOptions {
  int head_dim = 0;  // a multiple of 4, at most 512
  /// Channels that share one scale and offset: a multiple of 4 that divides head_dim. 0: head_dim up to 128,
  /// above that its largest such divisor up to 128.
  int group = 0;
  /// Clip ratio in (0, 1]: |x| is bounded by the element at index floor(clip·head_dim) of the row's ascending
  /// magnitudes. 1: no clip.
  float clip = 1.0f;
};

/// Bytes of a page's codes, [64, head_dim / 4]: channel 4i+j of a row in bits 2j and 2j+1 of its byte i.
size_t codes_size(const QuantOptions& options);
/// fp16 numbers of a page's parameters, [64, head_dim / group, 2]: scale, offset.
size_t params_size(const QuantOptions& options);
/// Bits per element of what encode_page writes: 2 + 32 / group.
double bits_per_element(const QuantOptions& options);

/// rows [64, head_dim], rounded to bf16 first as a cache does -> codes and params (bit patterns of fp16).
/// All of these throw Error{BadArgument} when options or sizes do not fit together, naming both.
void encode_page(std::span<const float> rows, const QuantOptions& options, std::span<uint8_t> codes,
                 std::span<uint16_t> params);
/// The same from bit patterns of bf16.
void encode_page(std::span<const uint16_t> rows, const QuantOptions& options, std::span<uint8_t> codes,
                 std::span<uint16_t> params);
/// codes and params -> x̂ [64, head_dim].
void decode_page(std::span<const uint8_t> codes, std::span<const uint16_t> params,
                 const QuantOptions& options, std::span<float> rows);

/// rows [n, head_dim], each row x becomes x·H in place, H the normalised Hadamard matrix of order head_dim;
/// and back, x·Hᵀ. Errors: Unsupported for orders without a matrix here (supported: m·2^k with m in {1, 12,
/// 20, 28}).
void rotate_hadamard(std::span<float> rows, int head_dim);
void unrotate_hadamard(std::span<float> rows, int head_dim);

}  // namespace kv2
