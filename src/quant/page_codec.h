// SPDX-License-Identifier: Apache-2.0
// PageCodec: how one side (K or V) of a layer's packed page is stored, all KV heads together, so that heads
// may share something (a token's norm). A page is coded at once from its own 64 rows and never changes; its
// bytes are the canonical ones of docs/page-format.md and the same on every machine. A reader decodes one
// head at a time.
//
// int2 on both sides is stored in head pages instead (page_layout.h) and has kernels of its own; this
// interface is the way for all other formats, on host memory.
#pragma once

#include <cstddef>
#include <string>

#include "base/float16.h"
#include "quant/coder.h"
#include "quant/page_layout.h"

namespace kv2 {

/// The 64 rows of one side of a full page, [n_kv_heads][64][head_dim] bf16.
struct PageRows {
  const bf16* rows = nullptr;
  size_t head_stride = 0;  // values between heads; rows of a head follow each other

  const bf16* head(int kv_head) const { return rows + static_cast<size_t>(kv_head) * head_stride; }
};

class PageCodec {
 public:
  virtual ~PageCodec() = default;

  /// `format` with what it leaves open filled in for this head_dim. Errors: BadArgument, saying what is
  /// possible.
  virtual SideFormat resolve(const SideFormat& format, int head_dim) const = 0;
  /// Of one page, all KV heads. `format` resolved.
  virtual size_t bytes(const SideFormat& format, const KvShape& shape) const = 0;
  /// rows -> page [bytes()], 8-byte aligned. coder: as the method chooses codes; tables in host memory.
  virtual void encode(const Side& side, const PageRows& rows, const Coder& coder, std::byte* page) const = 0;
  /// x̂ [64, head_dim] of one head.
  virtual void decode(const Side& side, const std::byte* page, int kv_head, float* rows) const = 0;
};

/// The codec of an id other than None.
const PageCodec& page_codec(CodecId id);
/// "affine 3 bits, groups of 64".
std::string describe(const SideFormat& format);

}  // namespace kv2
