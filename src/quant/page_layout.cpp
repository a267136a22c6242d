// SPDX-License-Identifier: Apache-2.0
// Sizes of pages from a CacheSpec and a model's shape. All offsets follow from head_dim and group; nothing
// here knows how a backend arranges bytes inside a head page.
#include "quant/page_layout.h"

#include "base/check.h"
#include "quant/coder.h"

namespace kv2 {

int default_group(int head_dim) {
  if (head_dim <= 0 || head_dim % 4 != 0) return 0;
  if (head_dim <= 128) return head_dim;
  for (int group = 128; group > 0; group -= 4) {
    if (head_dim % group == 0) return group;
  }
  return 0;
}

PageLayout PageLayout::of(const CacheSpec& spec, const KvShape& shape) {
  if (shape.n_layers <= 0 || shape.n_kv_heads <= 0 || shape.head_dim <= 0) {
    throw_error(ErrorCode::BadArgument, "a cache needs layers, KV heads and a head_dim, found {}, {} and {}",
                shape.n_layers, shape.n_kv_heads, shape.head_dim);
  }
  if (!spec.method.quantized()) return {.shape = shape};
  const int group = spec.method.group > 0 ? spec.method.group : default_group(shape.head_dim);
  if (shape.head_dim > kMaxHeadDim || group <= 0 || group % 4 != 0 || shape.head_dim % group != 0) {
    throw_error(ErrorCode::BadArgument,
                "group {} does not fit head_dim {}: it must divide head_dim and be a multiple of 4, head_dim "
                "at most {}",
                group, shape.head_dim, kMaxHeadDim);
  }
  return {.shape = shape, .group = group, .codec = spec.method.codec};
}

}  // namespace kv2
