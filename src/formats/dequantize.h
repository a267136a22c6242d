// SPDX-License-Identifier: Apache-2.0
// Block formats of weights: how many elements and bytes a block has, and its decoding to float.
// Every decoder computes in fp32 in the order that its layout comment writes, without contraction, so that
// the same file gives the same weights on every machine. Decoding only: nothing here quantizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kv2 {

/// One encoding of weights. `decode` is null for types whose size is known but that kv2 does not decode.
struct BlockType {
  uint32_t gguf_id;
  std::string_view name;   // as GGUF names it
  int64_t block_elements;  // a row is a whole number of blocks
  size_t block_bytes;
  void (*decode)(const std::byte* blocks, int64_t n_blocks, float* out);  // out [n_blocks * block_elements]
};

/// nullptr for a number or name that GGUF v3 does not define.
const BlockType* find_block_type(uint32_t gguf_id);
const BlockType* find_block_type(std::string_view name);

/// "F32 F16 BF16 Q4_0 …": the types that can be decoded, for messages.
std::string decodable_types();

/// Elements [first, first + n) of an encoded array, whole or part of blocks; out [n].
/// Requires: type.decode; the range lies inside `bytes` (checked).
void decode_elements(const BlockType& type, std::span<const std::byte> bytes, int64_t first, int64_t n,
                     float* out);

}  // namespace kv2
