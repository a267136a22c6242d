// SPDX-License-Identifier: Apache-2.0
// Full head pages to floats, half a page at a time into a worker's scratch.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/expand.cpp"
#include "cpu/targets.h"  // before Highway

#include <hwy/foreach_target.h>

#include "cpu/head_page.h"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kv2::cpu::HWY_NAMESPACE {

constexpr size_t kTokens = kPageTokens;

HWY_ATTR void ExpandFullKeys(const std::byte* head_page, int head_dim, int n_tokens, float* keys) {
  const Floats f;
  const auto* from = reinterpret_cast<const uint16_t*>(head_page);
  const size_t d = static_cast<size_t>(head_dim), n = static_cast<size_t>(n_tokens);
  if (n == kTokens) {
    for (size_t i = 0; i < d * kTokens; i += kLanes) hn::StoreU(load_bf16(from + i), f, keys + i);
    return;
  }
  // What lies beyond the last token is garbage, NaN included: selected away, never multiplied.
  for (size_t t = 0; t < kTokens; t += kLanes) {
    const auto held = hn::FirstN(f, n > t ? n - t : 0);
    for (size_t c = 0; c < d; c++)
      hn::StoreU(hn::IfThenElseZero(held, load_bf16(from + c * kTokens + t)), f, keys + c * kTokens + t);
  }
}

HWY_ATTR void ExpandFullValues(const std::byte* head_page, int head_dim, int n_tokens, float* values) {
  const size_t d = static_cast<size_t>(head_dim), n = static_cast<size_t>(n_tokens);
  const auto* from = reinterpret_cast<const uint16_t*>(head_page) + kTokens * d;
  for (size_t i = 0; i < n * d; i += kLanes) hn::StoreU(load_bf16(from + i), Floats(), values + i);
}

}  // namespace kv2::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv2::cpu {

HWY_EXPORT(ExpandFullKeys);
HWY_EXPORT(ExpandFullValues);

void expand_full_keys(const std::byte* head_page, int head_dim, int n_tokens, float* keys) {
  HWY_DYNAMIC_DISPATCH(ExpandFullKeys)(head_page, head_dim, n_tokens, keys);
}
void expand_full_values(const std::byte* head_page, int head_dim, int n_tokens, float* values) {
  HWY_DYNAMIC_DISPATCH(ExpandFullValues)(head_page, head_dim, n_tokens, values);
}

}  // namespace kv2::cpu
#endif
