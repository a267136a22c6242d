// SPDX-License-Identifier: Apache-2.0
// Bodies of attend_kernel.h per SIMD target. Rows go in blocks of up to kRows that share each load of a key
// or value.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attend_kernel.cpp"
#include "cpu/targets.h"  // before Highway

#include <hwy/foreach_target.h>

#include <cmath>

#include "cpu/attend_kernel.h"
#include "cpu/simd-inl.h"
#include "kv2/cache.h"

HWY_BEFORE_NAMESPACE();
namespace kv2::cpu::HWY_NAMESPACE {

constexpr int kTokens = kPageTokens;
constexpr float kMinusInfinity = -__builtin_inff();

/// Logits of one row, in place: scaled, capped, masked; returns the largest.
HWY_ATTR float finish_logits(float* s, float scale, float cap, int visible) {
  const Floats f;
  auto largest = hn::Set(f, kMinusInfinity);
  for (int t = 0; t < kTokens; t += static_cast<int>(kLanes)) {
    auto x = hn::Mul(hn::LoadU(f, s + t), hn::Set(f, scale));
    if (cap > 0) x = soft_capped(x, cap);
    if (visible < t + static_cast<int>(kLanes))
      x = hn::IfThenElse(hn::FirstN(f, static_cast<size_t>(visible > t ? visible - t : 0)), x,
                         hn::Set(f, kMinusInfinity));
    largest = hn::Max(largest, x);
    hn::StoreU(x, f, s + t);
  }
  return hn::GetLane(hn::MaxOfLanes(f, largest));
}

/// s becomes exp(s − max), 0 where masked; sum [16] += its lanes.
HWY_ATTR void exponentiate(float* s, float max, float* sum) {
  const Floats f;
  const auto m = hn::Set(f, max);
  for (size_t lane = 0; lane < 16; lane += kLanes) {
    auto total = hn::LoadU(f, sum + lane);
    for (size_t t = lane; t < static_cast<size_t>(kTokens); t += 16) {
      const auto p = exp_of(hn::Sub(hn::LoadU(f, s + t), m));
      total = hn::Add(total, p);
      hn::StoreU(p, f, s + t);
    }
    hn::StoreU(total, f, sum + lane);
  }
}

HWY_ATTR void scale_by(float* x, int n, float factor) {
  const Floats f;
  for (int i = 0; i < n; i += static_cast<int>(kLanes))
    hn::StoreU(hn::Mul(hn::LoadU(f, x + i), hn::Set(f, factor)), f, x + i);
}

/// body(row, rows, tokens) for blocks of up to kRows rows that read the same tokens.
template <class Body>
HWY_ATTR void for_each_block(const TileView& tile, const PageView& page, const Body& body) {
  for (int row = 0; row < tile.n_rows;) {
    int rows = tile.n_rows - row;
    if (page.visible) rows = page.rows_per_query - row % page.rows_per_query;
    rows = rows < kRows ? rows : kRows;
    body(row, rows, page.visible ? page.visible + row / page.rows_per_query : kTokens);
    row += rows;
  }
}

/// Half of the coming page over `steps` steps; nothing when that page is no full one.
HWY_ATTR Fetch fetch_half(const ComingPage& coming, int half, int steps) {
  const size_t lines = coming.bytes / 128 / static_cast<size_t>(steps);
  return {coming.at + static_cast<size_t>(half) * (coming.bytes / 2), lines};
}

template <class Key, class F>
HWY_ATTR void keys_of(const TileView& tile, const PageView& page, const Key* keys, const Partial& partial,
                      const F& fetch) {
  const size_t d = static_cast<size_t>(tile.head_dim);
  for_each_block(tile, page, [&](int row, int rows, int tokens) HWY_ATTR {
    float* logits = tile.weights + row * kTokens;
    multiply(rows, tile.q + row * d, d, tile.head_dim, keys, kTokens, logits, kTokens, kTokens, Start::Zero,
             fetch);
    for (int r = row; r < row + rows; r++, logits += kTokens) {
      float &max = partial.max[r], *sum = partial.sum + r * 16;
      const float largest = finish_logits(logits, tile.softmax_scale, tile.soft_cap, tokens);
      if (page.first) {
        for (int i = 0; i < 16; i++) sum[i] = 0;
        max = largest;
      } else if (largest > max) {
        const float factor = exp_of(max - largest);
        scale_by(sum, 16, factor);
        scale_by(partial.out + r * d, tile.head_dim, factor);
        max = largest;
      }
      exponentiate(logits, max, sum);
    }
  });
}

template <class Value, class F>
HWY_ATTR void values_of(const TileView& tile, const PageView& page, const Value* values,
                        const Partial& partial, const F& fetch) {
  const size_t d = static_cast<size_t>(tile.head_dim);
  for_each_block(tile, page, [&](int row, int rows, int tokens) HWY_ATTR {
    multiply(rows, tile.weights + row * kTokens, kTokens, tokens, values, d, partial.out + row * d, d,
             tile.head_dim, page.first ? Start::Zero : Start::FromC, fetch);
  });
}

HWY_ATTR void AttendKeys(const TileView& tile, const PageView& page, const float* keys,
                         const Partial& partial) {
  keys_of(tile, page, keys, partial, NoFetch());
}
HWY_ATTR void AttendValues(const TileView& tile, const PageView& page, const float* values,
                           const Partial& partial) {
  values_of(tile, page, values, partial, NoFetch());
}
HWY_ATTR void AttendFull(const TileView& tile, const PageView& page, const uint16_t* head_page,
                         const ComingPage& coming, const Partial& partial) {
  const uint16_t* values = head_page + static_cast<size_t>(kTokens) * tile.head_dim;
  if (coming.bytes == 0) {
    keys_of(tile, page, head_page, partial, NoFetch());
    return values_of(tile, page, values, partial, NoFetch());
  }
  keys_of(tile, page, head_page, partial, fetch_half(coming, 0, tile.head_dim));
  values_of(tile, page, values, partial, fetch_half(coming, 1, kTokens));
}

HWY_ATTR void merge_row(float* into, const float* from, int n, float a, float b) {
  const Floats f;
  for (int i = 0; i < n; i += static_cast<int>(kLanes)) {
    const auto x = hn::Mul(hn::LoadU(f, into + i), hn::Set(f, a));
    hn::StoreU(hn::MulAdd(hn::LoadU(f, from + i), hn::Set(f, b), x), f, into + i);
  }
}

HWY_ATTR void Merge(const Partial& into, const Partial& from, int n_rows, int head_dim) {
  for (int r = 0; r < n_rows; r++) {
    const float max = into.max[r] > from.max[r] ? into.max[r] : from.max[r];
    const float a = exp_of(into.max[r] - max), b = exp_of(from.max[r] - max);
    merge_row(into.sum + r * 16, from.sum + r * 16, 16, a, b);
    merge_row(into.out + static_cast<size_t>(r) * head_dim, from.out + static_cast<size_t>(r) * head_dim,
              head_dim, a, b);
    into.max[r] = max;
  }
}

HWY_ATTR void Finish(const Partial& partial, int row, int head_dim, float* out) {
  const Floats f;
  const auto sum = hn::Set(f, sum_of_16(partial.sum + static_cast<size_t>(row) * 16));
  const float* from = partial.out + static_cast<size_t>(row) * head_dim;
  for (int i = 0; i < head_dim; i += static_cast<int>(kLanes))
    hn::StoreU(hn::Div(hn::LoadU(f, from + i), sum), f, out + i);
}

}  // namespace kv2::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv2::cpu {

HWY_EXPORT(AttendKeys);
HWY_EXPORT(AttendValues);
HWY_EXPORT(AttendFull);
HWY_EXPORT(Merge);
HWY_EXPORT(Finish);

void attend_keys(const TileView& tile, const PageView& page, const float* keys, const Partial& partial) {
  HWY_DYNAMIC_DISPATCH(AttendKeys)(tile, page, keys, partial);
}
void attend_values(const TileView& tile, const PageView& page, const float* values, const Partial& partial) {
  HWY_DYNAMIC_DISPATCH(AttendValues)(tile, page, values, partial);
}
void attend_full(const TileView& tile, const PageView& page, const std::byte* head_page,
                 const ComingPage& coming, const Partial& partial) {
  HWY_DYNAMIC_DISPATCH(AttendFull)(tile, page, reinterpret_cast<const uint16_t*>(head_page), coming, partial);
}
void merge(const Partial& into, const Partial& from, int n_rows, int head_dim) {
  HWY_DYNAMIC_DISPATCH(Merge)(into, from, n_rows, head_dim);
}
void finish(const Partial& partial, int row, int head_dim, float* out) {
  HWY_DYNAMIC_DISPATCH(Finish)(partial, row, head_dim, out);
}

}  // namespace kv2::cpu
#endif
