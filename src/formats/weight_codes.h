// SPDX-License-Identifier: Apache-2.0
// A coded tensor as codes, scales and offsets instead of floats, for backends that multiply from the codes:
//   x = scale·(code − zero) + offset, one scale (and offset) per `block` consecutive elements of a row.
// The floats of dequantize.h come out of this in the same products (scale and offset are the fp32 products
// there).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "formats/tensor_file.h"

namespace kv2 {

struct CodeFormat {
  int bits;   // codes lie below 2^bits: 4, 6 or 8 (what is stored in 2, 3 or 5 bits takes the next one)
  int block;  // 16 or 32
  int zero;
  bool has_offset;
  bool operator==(const CodeFormat&) const = default;
};

/// Of a type as GGUF names it; nullopt for types that store floats.
std::optional<CodeFormat> code_format(std::string_view type);

/// Rows [row0, row0 + n) of a matrix whose type has a code format. codes [n, row length], scale and offset
/// [n, row length / block]; offset is written where the format has one.
void read_codes(const TensorFile& file, const TensorInfo& tensor, int64_t row0, int64_t n, uint8_t* codes,
                float* scale, float* offset);

}  // namespace kv2
