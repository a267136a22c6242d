// SPDX-License-Identifier: Apache-2.0
// What the codecs of this folder ask of a format beside its bits: a whole head under one norm, packed in
// bytes.
#pragma once

#include "base/check.h"
#include "quant/page_codec.h"

namespace kv2::gauss {

/// The format with its group filled in: the head. Errors: BadArgument for a head that cannot be packed, or
/// any other group.
inline SideFormat with_one_norm(SideFormat format, int head_dim) {
  if (head_dim % 8 != 0 || head_dim > kMaxHeadDim)
    throw_error(
        ErrorCode::BadArgument,
        "heads of a multiple of 8 up to {} channels can be packed, this model has head_dim {}; use bf16",
        kMaxHeadDim, head_dim);
  if (format.group != 0 && format.group != head_dim)
    throw_error(ErrorCode::BadArgument, "group {}: one norm serves a whole head, {} channels", format.group,
                head_dim);
  format.group = head_dim;
  return format;
}

}  // namespace kv2::gauss
