// SPDX-License-Identifier: Apache-2.0
#include "cuda/side_format.h"

#include "base/check.h"
#include "quant/bit_string.h"
#include "quant/page_codec.h"

namespace kv2::cuda {

std::string why_no_kernels(const SideFormat& side) {
  switch (side.codec) {
    case CodecId::Bf16:
    case CodecId::Affine:
      return "";
    case CodecId::Channel:
      if (side.kept > 0) return "tokens kept in bf16";
      return side.wide > 0 ? "channels of 4 bits among others of 2" : "";
    default:
      return "a codec without CUDA kernels";
  }
}

PackedSide packed_side(const SideFormat& side, const KvShape& shape, size_t begin) {
  if (const std::string why = why_no_kernels(side); !why.empty())
    throw_error(ErrorCode::Unsupported, "{}: {}; use --device cpu", describe(side), why);
  const size_t d = static_cast<size_t>(shape.head_dim);
  PackedSide out{.codec = PackedSide::kRows,
                 .offset = side.offset == OffsetKind::Stored    ? PackedSide::kStored
                           : side.offset == OffsetKind::Centred ? PackedSide::kCentred
                                                                : PackedSide::kSymmetric,
                 .bits = side.bits,
                 .group = side.group,
                 .norm = side.norm == TokenNorm::AllHeads,
                 .begin = begin,
                 .first_head = 0,
                 .head_bytes = sizeof(bf16) * kPageTokens * d,
                 .codes_bytes = 0};
  if (side.codec == CodecId::Bf16) return out;
  const size_t values = kPageTokens * d, group = static_cast<size_t>(side.group);
  out.codec = side.codec == CodecId::Affine ? PackedSide::kAffine : PackedSide::kChannel;
  out.first_head = out.norm ? sizeof(float) * kPageTokens : 0;
  out.codes_bytes = code_bytes(values, side.bits);
  out.head_bytes =
      out.codes_bytes + sizeof(fp16) * (values / group) * (side.offset == OffsetKind::Stored ? 2 : 1);
  if (side.codec == CodecId::Channel) out.head_bytes = (out.head_bytes + 7) / 8 * 8;
  return out;
}

}  // namespace kv2::cuda
