// SPDX-License-Identifier: Apache-2.0
#include "cache/cache_plan.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "cache/device_factors.h"
#include "cache/device_transforms.h"

namespace kv2 {

// Let S, W be the sink and recent pages, C the chunk. Before a forward that starts at n0 the sequence holds
// every page it has begun except those that were packed and freed: the pages S <= j < n0/64 - W, since the
// forward before demoted all of them (KvCache::begin) and no query from n0 on reads them in full. During the
// forward to n1 = n0 + r nothing is freed, so that
//     held(n0, n1) = pages_of(n1) - max(0, n0/64 - W - S).
// The need is its maximum over n <= n0 < target, 1 <= r <= min(C, target - n0); r is best as large as
// possible.
//  - n0 >= target - C: n1 = target, and held only falls with n0: the smallest such n0 is best.
//  - n0 <= target - C: within one page of n0 the second term is constant and the first does not fall, so the
//  last n0 of
//    a page, or target - C itself (the case above), is best. From one page's end to the next the first term
//    grows by 1 and the second by at most 1: the last page end in range is best.
// In the middle of a long prompt this is S + W + 1 + floor((C + 62) / 64).
// `exact` keeps everything until the prompt is done, and a whole target may be prompt.
int64_t PageNeed::full(int64_t n_tokens, int64_t target) const {
  target = std::max(target, n_tokens);
  if (!rule.quantized || prefill == PrefillPolicy::Exact) return pages_of(target);
  const auto held = [&](int64_t from, int64_t to) { return pages_of(to) - packed(from); };
  if (target == n_tokens) return held(n_tokens, n_tokens);
  const int64_t last_start = target - chunk_tokens;  // of a whole chunk
  int64_t most = held(std::max(n_tokens, last_start), target);
  const int64_t page_end = (last_start + 1) / kPageTokens * kPageTokens - 1;  // last position of a page
  if (last_start >= 0 && page_end >= n_tokens) most = std::max(most, held(page_end, page_end + chunk_tokens));
  return most;
}

int64_t PageNeed::packed(int64_t n_tokens) const {
  if (!rule.quantized) return 0;
  return std::max<int64_t>(0, n_tokens / kPageTokens - rule.recent_pages - rule.sink_pages);
}

size_t CachePlan::bytes_for(int64_t n_tokens) const {
  if (n_tokens <= 0) return 0;
  const PageNeed decode{.rule = rule, .chunk_tokens = 1};
  return decode.full(n_tokens - 1, n_tokens) * layout.full_page_bytes() +
         decode.packed(n_tokens) * layout.packed_page_bytes() + pages_of(n_tokens) * 2 * sizeof(int32_t);
}

double CachePlan::all_in_bits(int64_t n_tokens) const {
  if (n_tokens <= 0) return 0;
  const double elements =
      static_cast<double>(layout.page_elements()) / kPageTokens * static_cast<double>(n_tokens);
  return 8.0 * static_cast<double>(bytes_for(n_tokens)) / elements;
}

namespace {

CachePlan plan_pages(const CacheSpec& spec, const KvShape& shape, const CacheCapacity& capacity) {
  if (capacity.context_tokens <= 0 || capacity.n_sequences <= 0 || capacity.chunk_tokens <= 0 ||
      capacity.prefix_full_pages < 0) {
    throw_error(ErrorCode::BadArgument,
                "a cache of {} sequences of {} tokens in chunks of {} with {} prefix pages: "
                "the first three must be at least 1, the last at least 0",
                capacity.n_sequences, capacity.context_tokens, capacity.chunk_tokens,
                capacity.prefix_full_pages);
  }
  CachePlan plan{.layout = PageLayout::of(spec, shape),
                 .rule = {spec.sink_pages(), spec.recent_pages(), spec.method.quantized()},
                 .capacity = capacity};
  const PageNeed need{plan.rule, spec.prefill, capacity.chunk_tokens};
  const int64_t n_pages =
      capacity.context_tokens / kPageTokens + (capacity.context_tokens % kPageTokens != 0);
  const int64_t most = (INT32_MAX - static_cast<int64_t>(capacity.prefix_full_pages)) / capacity.n_sequences;
  if (n_pages > most) {  // also keeps everything below far from overflow
    throw_error(ErrorCode::OutOfMemory,
                "{} sequences of {} tokens are more pages than a cache can number (2^31); "
                "at most {} tokens each",
                capacity.n_sequences, capacity.context_tokens, most * kPageTokens);
  }
  plan.n_full_pages =
      capacity.n_sequences * need.full(0, capacity.context_tokens) + capacity.prefix_full_pages;
  plan.n_packed_pages = capacity.n_sequences * need.packed(capacity.context_tokens);
  plan.full_bytes = plan.n_full_pages * plan.layout.full_page_bytes();
  plan.packed_bytes = plan.n_packed_pages * plan.layout.packed_page_bytes();
  plan.table_bytes = capacity.n_sequences * n_pages * 2 * sizeof(int32_t);
  plan.coder_bytes = DeviceFactors::bytes(spec.method, plan.layout);
  return plan;
}

/// What the method's transforms take when engine/transforms.h fits them.
size_t usual_transform_bytes(const CacheSpec& spec, const KvShape& shape) {
  switch (spec.method.transform) {
    case TransformKind::Identity:
      return 0;
    case TransformKind::Hadamard:
    case TransformKind::SignedHadamard: {  // the same in all layers, for K and V; sizes do not depend on
                                           // signs and blocks
      const int block = spec.method.hadamard_block;
      const Transform h = spec.method.transform == TransformKind::SignedHadamard
                              ? signed_hadamard_transform(shape.n_kv_heads, shape.head_dim)
                              : hadamard_transform(shape.n_kv_heads, shape.head_dim, block);
      const TransformSides sides = spec.method.transform_sides;
      const std::array<LayerTransforms, 1> layer{
          LayerTransforms{sides == TransformSides::Values ? Transform{} : h,
                          sides == TransformSides::Keys ? Transform{} : h}};
      return DeviceTransforms::bytes(layer);
    }
    case TransformKind::Calibrated:
      return shape.n_layers *
             DeviceTransforms::calibrated_layer_bytes(shape, spec.method.centring == Centring::Keys ? 1 : 0);
  }
  return 0;
}

}  // namespace

CachePlan plan_cache(const CacheSpec& spec, const KvShape& shape, const CacheCapacity& capacity) {
  CachePlan plan = plan_pages(spec, shape, capacity);
  plan.transform_bytes = usual_transform_bytes(spec, shape);
  return plan;
}

CachePlan plan_cache(const CacheSpec& spec, const KvShape& shape, const CacheCapacity& capacity,
                     std::span<const LayerTransforms> transforms) {
  CachePlan plan = plan_pages(spec, shape, capacity);
  plan.transform_bytes = DeviceTransforms::bytes(transforms);
  return plan;
}

int64_t context_that_fits(const CacheSpec& spec, const KvShape& shape, const CacheCapacity& capacity,
                          size_t bytes) {
  const size_t transforms = usual_transform_bytes(spec, shape);
  const auto fits = [&](int64_t n_pages) {
    CacheCapacity c = capacity;
    c.context_tokens = n_pages * kPageTokens;
    return plan_pages(spec, shape, c).total_bytes() + transforms <= bytes;
  };
  // Bytes never fall as the context grows, so the border is found by halving.
  int64_t low = 0,
          high = (INT32_MAX - static_cast<int64_t>(capacity.prefix_full_pages)) / capacity.n_sequences;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle))
      low = middle;
    else
      high = middle - 1;
  }
  return low * kPageTokens;
}

}  // namespace kv2
