// SPDX-License-Identifier: Apache-2.0
// Body of packed_kernel.h, once per target and once more for VNNI: included inside the target's namespace.
#include "cpu/dot-inl.h"
#include "cpu/fold-inl.h"

constexpr int kPackedRows =
    HWY_CAP_GE512 ? 6 : 3;               // rows that share one read of the codes; 2·kPackedRows sums
constexpr size_t kHalves = 16 / kLanes;  // vectors of 16 lanes

struct Codes16 {
  CodeBytes bytes[kHalves];
};
struct Sum16 {
  IntVec v[kHalves];
};

/// Where the bytes of a block of rows lie: row r's high ones at 2r·part, its low ones `part` further; those
/// that meet field f of code vector p at p·step + f·field. Constants, so that one pointer reaches all of
/// them.
struct ByteOrder {
  int step, field, part;
};
constexpr ByteOrder kQueryOrder{16, 4, kMostCodedDim}, kPageOrder{kPageStep, kPageField, kPageTokens};

/// One field (bits 2F) of B vectors of codes times four values of R rows. A function and not a lambda: GCC 12
/// keeps sums that a lambda captured in memory, which is slow.
template <int F, ByteOrder Order, int R, int B>
HWY_INLINE HWY_ATTR void add_field(IntVec (&high)[R][B][kHalves], IntVec (&low)[R][B][kHalves],
                                   const Codes16 (&w)[B], const int8_t* x) {
  const auto mask = hn::Set(Ints8(), 3);
  CodeBytes c[B][kHalves];
  for (int b = 0; b < B; b++)
    for (size_t h = 0; h < kHalves; h++) c[b][h] = bits_of<2 * F>(w[b].bytes[h], mask);
  for (int r = 0; r < R; r++) {
    const int8_t* at = x + 2 * r * Order.part + F * Order.field;
    const auto a = broadcast4(at), l = broadcast4(at + Order.part);
    for (int b = 0; b < B; b++)
      for (size_t h = 0; h < kHalves; h++) {
        high[r][b][h] = dot4(high[r][b][h], c[b][h], a);
        low[r][b][h] = dot4(low[r][b][h], c[b][h], l);
      }
  }
}

/// Sums of R rows over n_words of `codes` from first_word on, whose lanes are B times 16 rows of the codes
/// (tokens or channels). codes [B][words/4][64 bytes]; x: the rows' bytes.
template <ByteOrder Order, int R, int B>
HWY_INLINE HWY_ATTR void dot_codes(const uint8_t* codes, size_t block_bytes, int first_word, int n_words,
                                   const int8_t* x, Sum16 (&sums)[R][B]) {
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
    const int8_t* at = x + Order.step * p;
    add_field<0, Order>(high, low, w, at);
    add_field<1, Order>(high, low, w, at);
    add_field<2, Order>(high, low, w, at);
    add_field<3, Order>(high, low, w, at);
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

/// Part `part` of `parts` of what comes next: all of it at once would wait for the memory's queue.
HWY_INLINE void fetch_part(const ComingPage& page, size_t part, size_t parts) {
  const size_t lines = (page.bytes + 63) / 64, end = lines * (part + 1) / parts;
  for (size_t i = lines * part / parts; i < end; i++) __builtin_prefetch(page.at + 64 * i);
  asm volatile("");  // else GCC 12 may take this function for pure and drop its calls
}

/// What R rows bring to the logits, copied to where constants reach it: with pointers into CodedQueries, GCC
/// 12 keeps an address for every row on the stack.
template <int R>
struct RowTerms {
  static constexpr int kMostGroups = kMostCodedDim / 16;
  alignas(64) int8_t bytes[2 * R * kMostCodedDim];  // in kQueryOrder
  float unit[R], rest[kMostGroups][R], sum[kMostGroups][R];

  HWY_INLINE HWY_ATTR RowTerms(const CodedQueries& q, int row, int d, int groups) {
    for (int i = 0; i < 2 * R; i++)
      __builtin_memcpy(bytes + i * kMostCodedDim, q.halves + (2 * static_cast<size_t>(row) + i) * d,
                       static_cast<size_t>(d));
    for (int r = 0; r < R; r++) {
      unit[r] = q.unit[row + r];
      for (int g = 0; g < groups; g++) {
        rest[g][r] = q.rest[static_cast<size_t>(row + r) * groups + g];
        sum[g][r] = q.sum[static_cast<size_t>(row + r) * groups + g];
      }
    }
  }
};

/// Logits of R rows, all 64 tokens: logits [R][64].
template <int R, int B>
HWY_INLINE HWY_ATTR void packed_logits(const RowTerms<R>& q, const std::byte* page, const ComingPage& coming,
                                       const Int2Layout& layout, float* logits) {
  const Floats f;
  const int groups = layout.n_groups(), words = layout.group / 4;
  const auto* codes = reinterpret_cast<const uint8_t*>(page + layout.k_codes());
  const auto* params = reinterpret_cast<const fp16*>(page + layout.k_params());
  const size_t block = static_cast<size_t>(layout.head_dim) * 4;
  for (int b = 0; b < 4; b += B) {
    if (coming.bytes > 0)
      for (int bb = 0; bb < B; bb++) fetch_part(coming, static_cast<size_t>(b + bb), 8);
    for (int g = 0; g < groups; g++) {
      Sum16 sums[R][B];
      dot_codes<kQueryOrder, R, B>(codes + static_cast<size_t>(b) * block, block, g * words, words, q.bytes,
                                   sums);
      for (int bb = 0; bb < B; bb++)
        for (size_t h = 0; h < kHalves; h++) {
          const size_t t = static_cast<size_t>(16 * (b + bb)) + h * kLanes;
          const auto scale = load_fp16(params + g * kPageTokens + t);
          const auto offset = load_fp16(params + (groups + g) * kPageTokens + t);
          for (int r = 0; r < R; r++) {
            float* s = logits + r * kPageTokens + t;
            const auto dot = hn::MulAdd(hn::ConvertTo(f, sums[r][bb].v[h]), hn::Set(f, q.unit[r]),
                                        hn::Set(f, q.rest[g][r]));
            auto logit = hn::Mul(offset, hn::Set(f, q.sum[g][r]));
            if (g > 0) logit = hn::Add(logit, hn::LoadU(f, s));
            hn::StoreU(hn::MulAdd(dot, scale, logit), f, s);
          }
        }
    }
  }
}

/// The values of a page and row in 16 lanes: token t in lane t % 16.
struct Lanes16 {
  Vec v[kHalves];
  HWY_INLINE HWY_ATTR void store(float* to) const {
    for (size_t h = 0; h < kHalves; h++) hn::Store(v[h], Floats(), to + h * kLanes);
  }
};

/// n pages and R rows at once, item j·R + r being page j's row r. Stage by stage over all of them: a page
/// alone is one long chain (largest, exp, largest, fixed point), and its dot products are more than a core
/// looks ahead.
template <int R>
class PackedSoftmax {
 public:
  static constexpr int kItems = PackedPages::kMost * R, kRoom = (kItems + 15) / 16 * 16;

  /// From logits p to exp(logit − max), max being the largest logit up to that page; sums follow. factor(j,
  /// r) is what out must be multiplied by before page j is added.
  HWY_INLINE HWY_ATTR void exponentiate(int n, float cap, bool first, float* max, float* sum) {
    const Floats f;
    for (int i = 0; i < n * R; i++) largest_logits(p + i * kPageTokens, cap).store(lanes_ + 16 * i);
    fold_lanes<LargestOf>(lanes_, n * R, tops_);
    for (int r = 0; r < R; r++) {
      float top = first ? tops_[r] : max[r];
      for (int j = 0; j < n; j++) {
        const float here = tops_[j * R + r];
        factor[j * R + r] = 1;
        if (here > top) {
          factor[j * R + r] = exp_of(top - here);
          top = here;
        }
        tops_[j * R + r] = top;
      }
      max[r] = top;
    }
    if (first)
      for (int i = 0; i < R * 16; i += static_cast<int>(kLanes)) hn::StoreU(hn::Zero(f), f, sum + i);
    for (int i = 0; i < n * R; i++) {
      float *x = p + i * kPageTokens, *total = sum + i % R * 16;
      const auto m = hn::Set(f, tops_[i]), scale = hn::Set(f, factor[i]);
      Lanes16 s;
      for (size_t h = 0; h < kHalves; h++) s.v[h] = hn::Mul(hn::LoadU(f, total + h * kLanes), scale);
      for (size_t v = 0; v < kPageParts; v++) {
        const auto e = exp_below(hn::Sub(hn::Load(f, x + v * kLanes), m));
        hn::Store(e, f, x + v * kLanes);
        s.v[v % kHalves] = hn::Add(s.v[v % kHalves], e);
      }
      for (size_t h = 0; h < kHalves; h++) hn::StoreU(s.v[h], f, total + h * kLanes);
    }
  }

  /// p·scale of a group of values in fixed point: bytes, unit, and in rest what every channel gets on top: Σ
  /// p·offset, and 1.5 times what rounding left. params(j): the page's scales [64] of the group; its offsets
  /// [64] `offset` further.
  template <class Params>
  HWY_INLINE HWY_ATTR void code_weights(int n, const Params& params, size_t offset) {
    const Floats f;
    for (int j = 0; j < n; j++) {
      const fp16* at = params(j);
      Vec scale[kPageParts], shift[kPageParts];
      for (size_t v = 0; v < kPageParts; v++) {
        scale[v] = load_fp16(at + v * kLanes);
        shift[v] = load_fp16(at + offset + v * kLanes);
      }
      for (int i = j * R; i < (j + 1) * R; i++) {
        Lanes16 top, sum;
        for (size_t h = 0; h < kHalves; h++) top.v[h] = sum.v[h] = hn::Zero(f);
        for (size_t v = 0; v < kPageParts; v++) {
          const auto x = hn::Load(f, p + i * kPageTokens + v * kLanes);
          top.v[v % kHalves] = hn::Max(top.v[v % kHalves], hn::Mul(x, scale[v]));
          sum.v[v % kHalves] = hn::MulAdd(x, shift[v], sum.v[v % kHalves]);
        }
        top.store(lanes_ + 16 * i);
        sum.store(rests_ + 16 * i);
      }
    }
    fold_lanes<LargestOf>(lanes_, n * R, unit);
    alignas(64) float inverse[kRoom];
    for (int i = 0; i < n * R; i += static_cast<int>(kLanes)) {
      const auto largest = hn::Max(hn::Load(f, unit + i), hn::Set(f, 1e-30f)), most = hn::Set(f, 32639.f);
      hn::Store(hn::Div(most, largest), f, inverse + i);
      hn::Store(hn::Div(largest, most), f, unit + i);
    }
    for (int j = 0; j < n; j++) {
      const fp16* at = params(j);
      Vec scale[kPageParts];
      for (size_t v = 0; v < kPageParts; v++) scale[v] = load_fp16(at + v * kLanes);
      for (int i = j * R; i < (j + 1) * R; i++) {
        const auto u = hn::Set(f, unit[i]), to_whole = hn::Set(f, inverse[i]);
        Lanes16 sum;
        for (size_t h = 0; h < kHalves; h++) sum.v[h] = hn::Load(f, rests_ + 16 * i + h * kLanes);
        IntVec whole[kPageParts];
        for (size_t v = 0; v < kPageParts; v++) {
          const auto w = hn::Mul(hn::Load(f, p + i * kPageTokens + v * kLanes), scale[v]);
          whole[v] = nearest(hn::Mul(w, to_whole));
          sum.v[v % kHalves] = hn::MulAdd(hn::Set(f, 1.5f), hn::NegMulAdd(hn::ConvertTo(f, whole[v]), u, w),
                                          sum.v[v % kHalves]);
        }
        store_page_halves(whole, bytes + i * 2 * kPageTokens, bytes + (2 * i + 1) * kPageTokens);
        sum.store(lanes_ + 16 * i);
      }
    }
    fold_lanes<SumOf>(lanes_, n * R, rest);
  }

  alignas(64) float p[kItems * kPageTokens];
  alignas(64) int8_t bytes[kItems * 2 * kPageTokens];
  alignas(64) float unit[kRoom], rest[kRoom];
  float factor[kRoom];

 private:
  /// In 16 lanes; caps the logits in place first.
  static HWY_INLINE HWY_ATTR Lanes16 largest_logits(float* s, float cap) {
    const Floats f;
    Lanes16 top;
    for (size_t v = 0; v < kPageParts; v++) {
      auto x = hn::Load(f, s + v * kLanes);
      if (cap > 0) {
        x = soft_capped(x, cap);
        hn::Store(x, f, s + v * kLanes);
      }
      top.v[v % kHalves] = v < kHalves ? x : hn::Max(top.v[v % kHalves], x);
    }
    return top;
  }

  alignas(64) float lanes_[kRoom * 16], rests_[kRoom * 16];  // of items beyond n·R: anything
  float tops_[kRoom];
};

HWY_INLINE HWY_ATTR void scale_row(float* x, int n, float factor) {
  const Floats f;
  for (int c = 0; c < n; c += static_cast<int>(kLanes))
    hn::StoreU(hn::Mul(hn::LoadU(f, x + c), hn::Set(f, factor)), f, x + c);
}

/// out [R][d] += rows of fixed-point weights times the codes of n_blocks times 16 channels.
template <int R, int B>
HWY_INLINE HWY_ATTR void packed_values(const int8_t* weights, const float* unit, const float* rest,
                                       const uint8_t* codes, int first_block, int n_blocks, int d,
                                       const ComingPage& coming, float* out) {
  const Floats f;
  for (int b = first_block; b < first_block + n_blocks; b += B) {
    if (coming.bytes > 0) {
      const size_t blocks = static_cast<size_t>(d) / 16;
      for (int bb = 0; bb < B; bb++) fetch_part(coming, blocks + static_cast<size_t>(b + bb), 2 * blocks);
    }
    Sum16 sums[R][B];
    dot_codes<kPageOrder, R, B>(codes + static_cast<size_t>(b) * 256, 256, 0, 16, weights, sums);
    for (int r = 0; r < R; r++) {
      for (int bb = 0; bb < B; bb++)
        for (size_t h = 0; h < kHalves; h++) {
          float* to = out + static_cast<size_t>(r) * d + 16 * (b + bb) + h * kLanes;
          hn::StoreU(hn::MulAdd(hn::ConvertTo(f, sums[r][bb].v[h]), hn::Set(f, unit[r]),
                                hn::Add(hn::LoadU(f, to), hn::Set(f, rest[r]))),
                     f, to);
        }
    }
  }
}

template <int R>
HWY_ATTR void attend_packed_rows(const TileView& tile, const CodedQueries& q, int row,
                                 const PackedPages& pages, const Int2Layout& layout, const Partial& partial) {
  constexpr int kWide = kLanes == 16 ? (R == 1   ? 4
                                        : R == 2 ? 2
                                                 : 1)
                                     : 1;  // enough sums in flight for few rows
  if (pages.n < 1) return;
  const Floats f;
  const int d = layout.head_dim, groups = layout.n_groups();
  const RowTerms<R> terms(q, row, d, groups);
  PackedSoftmax<R> softmax;
  for (int j = 0; j < pages.n; j++)
    packed_logits<R, kWide>(terms, pages.codes[j], row == 0 ? pages.coming[j] : ComingPage(), layout,
                            softmax.p + j * R * kPageTokens);
  softmax.exponentiate(pages.n, tile.soft_cap, pages.first, partial.max + row,
                       partial.sum + static_cast<size_t>(row) * 16);
  float* out = partial.out + static_cast<size_t>(row) * d;
  if (pages.first)
    for (int c = 0; c < R * d; c += static_cast<int>(kLanes)) hn::StoreU(hn::Zero(f), f, out + c);
  for (int g = 0; g < groups; g++) {
    const auto params = [&](int j) HWY_ATTR {
      return reinterpret_cast<const fp16*>(pages.codes[j] + layout.v_params()) + g * kPageTokens;
    };
    softmax.code_weights(pages.n, params, static_cast<size_t>(groups) * kPageTokens);
    const int n = layout.group / 16, first_block = g * n;
    for (int j = 0; j < pages.n; j++) {
      const float *factor = softmax.factor + j * R, *unit = softmax.unit + j * R,
                  *rest = softmax.rest + j * R;
      for (int r = 0; r < R; r++)
        if (factor[r] != 1)
          scale_row(out + static_cast<size_t>(r) * d + g * layout.group, layout.group, factor[r]);
      const auto* codes = reinterpret_cast<const uint8_t*>(pages.codes[j] + layout.v_codes());
      const int8_t* weights = softmax.bytes + j * R * 2 * kPageTokens;
      const ComingPage coming = row == 0 ? pages.coming[j] : ComingPage();
      if (n % kWide == 0)
        packed_values<R, kWide>(weights, unit, rest, codes, first_block, n, d, coming, out);
      else
        packed_values<R, 1>(weights, unit, rest, codes, first_block, n, d, coming, out);
    }
  }
}

HWY_ATTR void AttendPacked(const TileView& tile, const CodedQueries& q, const PackedPages& pages,
                           const Int2Layout& layout, const Partial& partial) {
  int row = 0;
  for (; row + kPackedRows <= tile.n_rows; row += kPackedRows)
    attend_packed_rows<kPackedRows>(tile, q, row, pages, layout, partial);
  switch (tile.n_rows - row) {
    case 1:
      return attend_packed_rows<1>(tile, q, row, pages, layout, partial);
    case 2:
      return attend_packed_rows<2>(tile, q, row, pages, layout, partial);
    case 3:
      if constexpr (kPackedRows > 3) return attend_packed_rows<3>(tile, q, row, pages, layout, partial);
      return;
    case 4:
      if constexpr (kPackedRows > 3) return attend_packed_rows<4>(tile, q, row, pages, layout, partial);
      return;
    case 5:
      if constexpr (kPackedRows > 3) return attend_packed_rows<5>(tile, q, row, pages, layout, partial);
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
