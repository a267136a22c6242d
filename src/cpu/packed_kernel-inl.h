// SPDX-License-Identifier: Apache-2.0
// Body of packed_kernel.h, once per target and once more for VNNI: included inside the target's namespace.
#include "cpu/dot-inl.h"

constexpr int kPackedRows =
    HWY_CAP_GE512 ? 6 : 3;               // rows that share one read of the codes; 2·kPackedRows sums
constexpr size_t kHalves = 16 / kLanes;  // vectors of 16 lanes

struct Codes16 {
  CodeBytes bytes[kHalves];
};
struct Sum16 {
  IntVec v[kHalves];
};

/// One field (bits 2F) of B vectors of codes times four values of R rows. A function and not a lambda: GCC 12
/// keeps sums that a lambda captured in memory, which is slow.
template <int F, int R, int B>
HWY_INLINE HWY_ATTR void add_field(IntVec (&high)[R][B][kHalves], IntVec (&low)[R][B][kHalves],
                                   const Codes16 (&w)[B], const int8_t* x, size_t stride, size_t low_at) {
  const auto mask = hn::Set(Ints8(), 3);
  CodeBytes c[B][kHalves];
  for (int b = 0; b < B; b++)
    for (size_t h = 0; h < kHalves; h++) c[b][h] = bits_of<2 * F>(w[b].bytes[h], mask);
  for (int r = 0; r < R; r++) {
    const auto a = broadcast4(x + static_cast<size_t>(r) * stride + 4 * F);
    const auto l = broadcast4(x + static_cast<size_t>(r) * stride + low_at + 4 * F);
    for (int b = 0; b < B; b++)
      for (size_t h = 0; h < kHalves; h++) {
        high[r][b][h] = dot4(high[r][b][h], c[b][h], a);
        low[r][b][h] = dot4(low[r][b][h], c[b][h], l);
      }
  }
}

/// Sums of R rows over [columns/4 words) of `codes`, whose lanes are B times 16 rows of the codes (tokens or
/// channels). codes [B][words/4][64 bytes]; x: R rows, `stride` apart, high bytes at 0, low bytes at
/// `low_at`.
template <int R, int B>
HWY_INLINE HWY_ATTR void dot_codes(const uint8_t* codes, size_t block_bytes, int first_word, int n_words,
                                   const int8_t* x, size_t stride, size_t low_at, Sum16 (&sums)[R][B]) {
  const Ints i;
  IntVec high[R][B][kHalves], low[R][B][kHalves];
  for (int r = 0; r < R; r++)
    for (int b = 0; b < B; b++)
      for (size_t h = 0; h < kHalves; h++) high[r][b][h] = low[r][b][h] = hn::Zero(i);
  int end = (first_word + n_words) / 4;
  asm("" : "+r"(end));  // unknown: GCC 12 would unroll all of it and spill the codes of every step
  for (int p = first_word / 4; p < end; p++) {
    Codes16 w[B];
    for (int b = 0; b < B; b++)
      for (size_t h = 0; h < kHalves; h++)
        w[b].bytes[h] = hn::LoadU(Ints8(), codes + static_cast<size_t>(b) * block_bytes +
                                               static_cast<size_t>(p) * 64 + h * 4 * kLanes);
    const int8_t* at = x + 16 * p;
    add_field<0>(high, low, w, at, stride, low_at);
    add_field<1>(high, low, w, at, stride, low_at);
    add_field<2>(high, low, w, at, stride, low_at);
    add_field<3>(high, low, w, at, stride, low_at);
  }
  for (int r = 0; r < R; r++)
    for (int b = 0; b < B; b++)
      for (size_t h = 0; h < kHalves; h++)
        sums[r][b].v[h] = hn::Add(hn::ShiftLeft<8>(high[r][b][h]), low[r][b][h]);
}

HWY_INLINE HWY_ATTR Vec load_fp16(const fp16* p) {
  const hn::Rebind<hwy::float16_t, Floats> halves;
  return hn::PromoteTo(Floats(), hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(p)));
}

/// Part `part` of four of what comes next: all of it at once would wait for the memory's queue.
HWY_INLINE void fetch_next(const PackedPage& page, int part) {
  const size_t lines = (page.next_bytes + 63) / 64, end = lines * static_cast<size_t>(part + 1) / 4;
  for (size_t i = lines * static_cast<size_t>(part) / 4; i < end; i++) __builtin_prefetch(page.next + 64 * i);
  asm volatile("");  // else GCC 12 may take this function for pure and drop its calls
}

/// Logits of R rows from row on, all 64 tokens: logits [R][64].
template <int R, int B>
HWY_INLINE HWY_ATTR void packed_logits(const CodedQueries& q, int row, const PackedPage& page,
                                       const uint8_t* codes, const fp16* params, const Int2Layout& layout,
                                       float* logits) {
  const Floats f;
  const int d = layout.head_dim, groups = layout.n_groups(), words = layout.group / 4;
  const size_t block = static_cast<size_t>(d) * 4;
  const int8_t* x = q.halves + static_cast<size_t>(row) * 2 * d;
  for (int b = 0; b < 4; b += B) {
    if (row == 0 && page.next)
      for (int bb = 0; bb < B; bb++) fetch_next(page, b + bb);
    for (int g = 0; g < groups; g++) {
      Sum16 sums[R][B];
      dot_codes<R, B>(codes + static_cast<size_t>(b) * block, block, g * words, words, x,
                      2 * static_cast<size_t>(d), static_cast<size_t>(d), sums);
      for (int bb = 0; bb < B; bb++)
        for (size_t h = 0; h < kHalves; h++) {
          const size_t t = static_cast<size_t>(16 * (b + bb)) + h * kLanes;
          const auto scale = load_fp16(params + g * kPageTokens + t);
          const auto offset = load_fp16(params + (groups + g) * kPageTokens + t);
          for (int r = 0; r < R; r++) {
            const size_t at = static_cast<size_t>(row + r) * groups + g;
            float* s = logits + r * kPageTokens + t;
            const auto dot = hn::MulAdd(hn::ConvertTo(f, sums[r][bb].v[h]), hn::Set(f, q.unit[row + r]),
                                        hn::Set(f, q.rest[at]));
            auto logit = hn::Mul(offset, hn::Set(f, q.sum[at]));
            if (g > 0) logit = hn::Add(logit, hn::LoadU(f, s));
            hn::StoreU(hn::MulAdd(dot, scale, logit), f, s);
          }
        }
    }
  }
}

/// Softmax of one row over a page: s [64] logits become p = exp(logit − max); the partial follows a new
/// maximum.
HWY_INLINE HWY_ATTR void packed_softmax(float* s, int row, int d, float cap, bool first,
                                        const Partial& partial) {
  const Floats f;
  auto largest = hn::Set(f, -__builtin_inff());
  for (size_t t = 0; t < kPageTokens; t += kLanes) {
    auto x = hn::LoadU(f, s + t);
    if (cap > 0) {
      x = soft_capped(x, cap);
      hn::StoreU(x, f, s + t);
    }
    largest = hn::Max(largest, x);
  }
  const float top = hn::GetLane(hn::MaxOfLanes(f, largest));
  float &max = partial.max[row], *sum = partial.sum + static_cast<size_t>(row) * 16;
  float* out = partial.out + static_cast<size_t>(row) * d;
  if (first) {
    for (size_t i = 0; i < 16; i += kLanes) hn::StoreU(hn::Zero(f), f, sum + i);
    for (int c = 0; c < d; c += static_cast<int>(kLanes)) hn::StoreU(hn::Zero(f), f, out + c);
    max = top;
  } else if (top > max) {
    const auto factor = exp_of(hn::Set(f, max - top));
    for (size_t i = 0; i < 16; i += kLanes) hn::StoreU(hn::Mul(hn::LoadU(f, sum + i), factor), f, sum + i);
    for (int c = 0; c < d; c += static_cast<int>(kLanes))
      hn::StoreU(hn::Mul(hn::LoadU(f, out + c), factor), f, out + c);
    max = top;
  }
  const auto m = hn::Set(f, max);
  for (size_t lane = 0; lane < 16; lane += kLanes) {
    auto total = hn::LoadU(f, sum + lane);
    for (size_t t = lane; t < kPageTokens; t += 16) {
      const auto p = exp_of(hn::Sub(hn::LoadU(f, s + t), m));
      total = hn::Add(total, p);
      hn::StoreU(p, f, s + t);
    }
    hn::StoreU(total, f, sum + lane);
  }
}

/// p·scale in fixed point of this row and page: halves [2][64], its unit, and what every channel of the group
/// gets on top: Σ p·offset, and 1.5 times what rounding left.
struct CodedWeights {
  float unit, rest;
};
HWY_INLINE HWY_ATTR CodedWeights code_weights(const float* p, const fp16* scale, const fp16* offset,
                                              int8_t* halves) {
  const Floats f;
  alignas(64) float w[kPageTokens];
  auto top = hn::Zero(f);
  alignas(64) float rest[16];
  for (size_t lane = 0; lane < 16; lane += kLanes) {
    auto sum = hn::Zero(f);
    for (size_t t = lane; t < kPageTokens; t += 16) {
      const auto x = hn::LoadU(f, p + t), y = hn::Mul(x, load_fp16(scale + t));
      hn::Store(y, f, w + t);
      top = hn::Max(top, y);
      sum = hn::MulAdd(x, load_fp16(offset + t), sum);
    }
    hn::Store(sum, f, rest + lane);
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(f, top));
  const float unit = (largest > 1e-30f ? largest : 1e-30f) / 32639.f;
  const auto inverse = hn::Set(f, 32639.f / (largest > 1e-30f ? largest : 1e-30f)), u = hn::Set(f, unit);
  for (size_t lane = 0; lane < 16; lane += kLanes) {
    auto sum = hn::Load(f, rest + lane);
    for (size_t t = lane; t < kPageTokens; t += 16) {
      const auto y = hn::Load(f, w + t);
      const auto i = nearest(hn::Mul(y, inverse));
      store_halves(i, halves + t, halves + kPageTokens + t);
      sum = hn::MulAdd(hn::Set(f, 1.5f), hn::NegMulAdd(hn::ConvertTo(f, i), u, y), sum);
    }
    hn::Store(sum, f, rest + lane);
  }
  return {unit, sum_of_16(rest)};
}

template <int R, int B>
HWY_INLINE HWY_ATTR void packed_values(const int8_t* weights, const CodedWeights* coded, int row,
                                       const uint8_t* codes, int first_block, int n_blocks, int d,
                                       const Partial& partial) {
  const Floats f;
  for (int b = first_block; b < first_block + n_blocks; b += B) {
    Sum16 sums[R][B];
    dot_codes<R, B>(codes + static_cast<size_t>(b) * 256, 256, 0, 16, weights, 2 * kPageTokens, kPageTokens,
                    sums);
    for (int r = 0; r < R; r++) {
      const auto unit = hn::Set(f, coded[r].unit), rest = hn::Set(f, coded[r].rest);
      for (int bb = 0; bb < B; bb++)
        for (size_t h = 0; h < kHalves; h++) {
          float* out = partial.out + static_cast<size_t>(row + r) * d + 16 * (b + bb) + h * kLanes;
          hn::StoreU(hn::MulAdd(hn::ConvertTo(f, sums[r][bb].v[h]), unit, hn::Add(hn::LoadU(f, out), rest)),
                     f, out);
        }
    }
  }
}

template <int R>
HWY_ATTR void attend_packed_rows(const TileView& tile, const CodedQueries& q, int row, const PackedPage& page,
                                 const Int2Layout& layout, const Partial& partial) {
  constexpr int kWide = kLanes == 16 ? (R == 1   ? 4
                                        : R == 2 ? 2
                                                 : 1)
                                     : 1;  // enough sums in flight for few rows
  const auto* k_codes = reinterpret_cast<const uint8_t*>(page.codes + layout.k_codes());
  const auto* v_codes = reinterpret_cast<const uint8_t*>(page.codes + layout.v_codes());
  const auto* v_params = reinterpret_cast<const fp16*>(page.codes + layout.v_params());
  const int d = layout.head_dim, groups = layout.n_groups();
  alignas(64) float p[R * kPageTokens];
  packed_logits<R, kWide>(q, row, page, k_codes,
                          reinterpret_cast<const fp16*>(page.codes + layout.k_params()), layout, p);
  for (int r = 0; r < R; r++)
    packed_softmax(p + r * kPageTokens, row + r, d, tile.soft_cap, page.first, partial);
  alignas(64) int8_t weights[R * 2 * kPageTokens];
  CodedWeights coded[R];
  for (int g = 0; g < groups; g++) {
    for (int r = 0; r < R; r++)
      coded[r] = code_weights(p + r * kPageTokens, v_params + g * kPageTokens,
                              v_params + (groups + g) * kPageTokens, weights + r * 2 * kPageTokens);
    const int n = layout.group / 16, first_block = g * n;
    if (n % kWide == 0)
      packed_values<R, kWide>(weights, coded, row, v_codes, first_block, n, d, partial);
    else
      packed_values<R, 1>(weights, coded, row, v_codes, first_block, n, d, partial);
  }
}

HWY_ATTR void AttendPacked(const TileView& tile, const CodedQueries& q, const PackedPage& page,
                           const Int2Layout& layout, const Partial& partial) {
  int row = 0;
  for (; row + kPackedRows <= tile.n_rows; row += kPackedRows)
    attend_packed_rows<kPackedRows>(tile, q, row, page, layout, partial);
  switch (tile.n_rows - row) {
    case 1:
      return attend_packed_rows<1>(tile, q, row, page, layout, partial);
    case 2:
      return attend_packed_rows<2>(tile, q, row, page, layout, partial);
    case 3:
      if constexpr (kPackedRows > 3) return attend_packed_rows<3>(tile, q, row, page, layout, partial);
      return;
    case 4:
      if constexpr (kPackedRows > 3) return attend_packed_rows<4>(tile, q, row, page, layout, partial);
      return;
    case 5:
      if constexpr (kPackedRows > 3) return attend_packed_rows<5>(tile, q, row, page, layout, partial);
      return;
    default:
      return;
  }
}

HWY_ATTR void CodeQueries(const TileView& tile, const Int2Layout& layout, const CodedQueries& to) {
  const Floats f;
  const int d = layout.head_dim, groups = layout.n_groups(), group = layout.group;
  const auto factor = hn::Set(f, tile.softmax_scale);
  for (int row = 0; row < tile.n_rows; row++) {
    const float* q = tile.q + static_cast<size_t>(row) * d;
    int8_t* halves = to.halves + static_cast<size_t>(row) * 2 * d;
    auto top = hn::Zero(f);
    for (int c = 0; c < d; c += static_cast<int>(kLanes))
      top = hn::Max(top, hn::Abs(hn::Mul(hn::LoadU(f, q + c), factor)));
    const float largest = hn::GetLane(hn::MaxOfLanes(f, top));
    const float unit = (largest > 1e-30f ? largest : 1e-30f) / 32639.f;
    const auto inverse = hn::Set(f, 32639.f / (largest > 1e-30f ? largest : 1e-30f)), u = hn::Set(f, unit);
    for (int g = 0; g < groups; g++) {
      alignas(64) float sums[16], rests[16];
      for (size_t lane = 0; lane < 16; lane += kLanes) {
        auto sum = hn::Zero(f), rest = hn::Zero(f);
        for (int c = g * group + static_cast<int>(lane); c < (g + 1) * group; c += 16) {
          const auto x = hn::Mul(hn::LoadU(f, q + c), factor);
          const auto i = nearest(hn::Mul(x, inverse));
          store_halves(i, halves + c, halves + d + c);
          sum = hn::Add(sum, x);
          rest = hn::Add(rest, hn::NegMulAdd(hn::ConvertTo(f, i), u, x));
        }
        hn::Store(sum, f, sums + lane);
        hn::Store(rest, f, rests + lane);
      }
      to.sum[static_cast<size_t>(row) * groups + g] = sum_of_16(sums);
      to.rest[static_cast<size_t>(row) * groups + g] = 1.5f * sum_of_16(rests);
    }
    to.unit[row] = unit;
  }
}
