// SPDX-License-Identifier: Apache-2.0
// Body of coded_kernel.h, once per target and once more for VNNI: included inside the target's namespace.
#include "cpu/dot-inl.h"

constexpr size_t kHalves = 16 / kLanes;  // vectors of 16 outputs

/// Codes up to 255.
HWY_INLINE HWY_ATTR IntVec dot4_of_bytes(IntVec acc, CodeBytes codes, IntVec x) {
#if KV2_VNNI
  return dot4(acc, codes, x);
#else  // two products of 255 leave 16 bits: by nibbles
  const auto mask = hn::Set(Ints8(), 15);
  const auto high = dot4(hn::Zero(Ints()), bits_of<4>(codes, mask), x);
  return hn::Add(dot4(acc, hn::And(codes, mask), x), hn::ShiftLeft<4>(high));
#endif
}

/// Sums of one block in flight: two of each for few rows, since a dot product takes longer than it is issued.
/// More rows have sums enough, and no registers left (6 rows with two of each: half the speed).
template <int R>
constexpr int kChains = R < 3 ? 2 : 1;
struct BlockSums {
  IntVec high[2], low[2];
};

template <int R>
struct RowsAt {
  const int8_t* p[R];  // high bytes of the block; low bytes `low` further
  size_t low;
};

template <int Bits, int R>
HWY_INLINE HWY_ATTR void add_word(BlockSums (&sums)[R], CodeBytes codes, const RowsAt<R>& rows, int word,
                                  int n) {
  const int chain = n % kChains<R>;
  for (int r = 0; r < R; r++) {
    const auto a = broadcast4(rows.p[r] + 4 * word), b = broadcast4(rows.p[r] + rows.low + 4 * word);
    if constexpr (Bits == 8) {
      sums[r].high[chain] = dot4_of_bytes(sums[r].high[chain], codes, a);
      sums[r].low[chain] = dot4_of_bytes(sums[r].low[chain], codes, b);
    } else {
      sums[r].high[chain] = dot4(sums[r].high[chain], codes, a);
      sums[r].low[chain] = dot4(sums[r].low[chain], codes, b);
    }
  }
}

/// One block of one half strip: `codes` at this half's lanes.
template <int Bits, int Words, int R>
HWY_INLINE HWY_ATTR void add_block(BlockSums (&sums)[R], const uint8_t* codes, const RowsAt<R>& rows) {
  const auto load = [codes](int vector) HWY_ATTR { return hn::LoadU(Ints8(), codes + 64 * vector); };
  if constexpr (Bits == 8) {
    for (int w = 0; w < Words; w++) add_word<8>(sums, load(w), rows, w, w % 2);
  } else if constexpr (Bits == 4) {
    const auto mask = hn::Set(Ints8(), 15);
    for (int v = 0; v < Words / 2; v++) {
      const auto bytes = load(v);
      add_word<4>(sums, hn::And(bytes, mask), rows, 2 * v, 0);
      add_word<4>(sums, bits_of<4>(bytes, mask), rows, 2 * v + 1, 1);
    }
  } else {
    const auto mask = hn::Set(Ints8(), 15), top = hn::Set(Ints8(), 0x30);
    const hn::Repartition<uint16_t, Ints> u16;
    for (int v = 0; v < Words / 4; v++) {
      const auto first = load(2 * v), second = load(2 * v + 1), high = load(Words / 2 + v);
      const auto words = hn::BitCast(u16, high);
      add_word<6>(sums,
                  hn::Or(hn::And(first, mask), hn::And(hn::BitCast(Ints8(), hn::ShiftLeft<4>(words)), top)),
                  rows, 4 * v, 0);
      add_word<6>(
          sums, hn::Or(bits_of<4>(first, mask), hn::And(hn::BitCast(Ints8(), hn::ShiftLeft<2>(words)), top)),
          rows, 4 * v + 1, 1);
      add_word<6>(sums, hn::Or(hn::And(second, mask), hn::And(high, top)), rows, 4 * v + 2, 0);
      add_word<6>(
          sums,
          hn::Or(bits_of<4>(second, mask), hn::And(hn::BitCast(Ints8(), hn::ShiftRight<2>(words)), top)),
          rows, 4 * v + 3, 1);
    }
  }
}

HWY_INLINE HWY_ATTR Vec load_params(const std::byte* p, size_t lane, bool half) {
  const hn::Rebind<hwy::float16_t, Floats> halves;
  if (half)
    return hn::PromoteTo(Floats(), hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(p) + lane));
  return hn::LoadU(Floats(), reinterpret_cast<const float*>(p) + lane);
}

/// x are lanes [lane, lane + kLanes) of the call's row r.
HWY_INLINE HWY_ATTR void put(Vec x, const StripOutput& out, int r, size_t lane) {
  const Floats f;
  float* to = out.to + static_cast<size_t>(r) * out.stride + lane;
  if (out.columns == 16) {
    if (out.bias) x = hn::Add(x, hn::LoadU(f, out.bias + lane));
    if (out.accumulate == Accumulate::Yes) x = hn::Add(x, hn::LoadU(f, to));
    return hn::StoreU(x, f, to);
  }
  alignas(64) float part[kLanes];
  hn::Store(x, f, part);
  for (size_t c = 0; c < kLanes && lane + c < static_cast<size_t>(out.columns); c++) {
    float y = part[c];
    if (out.bias) y += out.bias[lane + c];
    to[c] = out.accumulate == Accumulate::Yes ? y + to[c] : y;
  }
}

/// Rows [row, row + R) of x, which are the call's from r0 on. Meanwhile as many bytes as the strip has are
/// fetched from `ahead` on; nullptr: none.
template <int Bits, int Words, int R>
HWY_ATTR void multiply_rows_by_strip(const StripShape& s, const std::byte* strip, const std::byte* ahead,
                                     const CodedRows& x, int row, int r0, const StripOutput& out) {
  const Floats f;
  const Ints i;
  const int n_blocks = s.n_blocks();
  const size_t n_in = static_cast<size_t>(s.n_in), codes_bytes = s.code_bytes(), step = s.block_bytes();
  for (size_t h = 0; h < kHalves; h++) {
    Vec total[R];
    for (int r = 0; r < R; r++) total[r] = hn::Zero(f);
    RowsAt<R> rows;
    rows.low = n_in;
    for (int r = 0; r < R; r++) rows.p[r] = x.halves + static_cast<size_t>(row + r) * 2 * n_in;
    const std::byte* block = strip;
    for (int b = 0; b < n_blocks; b++, block += step) {
      if (ahead && h == 0) {
        for (size_t at = 0; at < step; at += 64) __builtin_prefetch(ahead + at);
        ahead += step;
      }
      BlockSums sums[R];
      for (int r = 0; r < R; r++)
        for (int c = 0; c < kChains<R>; c++) sums[r].high[c] = sums[r].low[c] = hn::Zero(i);
      add_block<Bits, Words>(sums, reinterpret_cast<const uint8_t*>(block) + h * 4 * kLanes, rows);
      const auto scale = load_params(block + codes_bytes, h * kLanes, s.half_params);
      for (int r = 0; r < R; r++) {
        const size_t at =
            static_cast<size_t>(row + r) * static_cast<size_t>(n_blocks) + static_cast<size_t>(b);
        auto high = sums[r].high[0], low = sums[r].low[0];
        if constexpr (kChains<R> == 2) {
          high = hn::Add(high, sums[r].high[1]);
          low = hn::Add(low, sums[r].low[1]);
        }
        auto sum = hn::Add(hn::ShiftLeft<8>(high), low);
        if (s.zero != 0) sum = hn::Sub(sum, hn::Set(i, s.zero * x.whole[at]));
        total[r] = hn::MulAdd(hn::ConvertTo(f, sum), hn::Mul(scale, hn::Set(f, x.unit[at])), total[r]);
        rows.p[r] += 4 * Words;
      }
      if (s.has_offset) {
        const auto offset = load_params(block + codes_bytes + s.param_bytes(), h * kLanes, s.half_params);
        for (int r = 0; r < R; r++) {
          const size_t at =
              static_cast<size_t>(row + r) * static_cast<size_t>(n_blocks) + static_cast<size_t>(b);
          total[r] = hn::MulAdd(offset, hn::Set(f, x.sum[at]), total[r]);
        }
      }
    }
    for (int r = 0; r < R; r++) put(total[r], out, r0 + r, h * kLanes);
  }
}

template <int Bits, int Words>
HWY_ATTR void multiply_all_rows(const StripShape& s, const std::byte* strip, const CodedRows& x, int first,
                                int n, const StripOutput& out) {
  constexpr int kMost = HWY_CAP_GE512 ? 4 : 2;  // rows that share one unpacking of the codes
  // A single row reads as fast as memory gives; with some, waiting would not fit between their products.
  const std::byte* ahead =
      n > 1 ? strip + s.strip_bytes() : nullptr;  // behind the last strip: the next matrix
  int r = 0;
  for (; r + kMost <= n; r += kMost, ahead = nullptr)
    multiply_rows_by_strip<Bits, Words, kMost>(s, strip, ahead, x, first + r, r, out);
  if constexpr (kMost > 2) {
    for (; r + 2 <= n; r += 2, ahead = nullptr)
      multiply_rows_by_strip<Bits, Words, 2>(s, strip, ahead, x, first + r, r, out);
  }
  if (r < n) multiply_rows_by_strip<Bits, Words, 1>(s, strip, ahead, x, first + r, r, out);
}

HWY_ATTR void MultiplyStrip(const StripShape& s, const std::byte* strip, const CodedRows& x, int row, int n,
                            const StripOutput& out) {
  if (s.block == 32) {
    if (s.bits == 4) return multiply_all_rows<4, 8>(s, strip, x, row, n, out);
    if (s.bits == 6) return multiply_all_rows<6, 8>(s, strip, x, row, n, out);
    return multiply_all_rows<8, 8>(s, strip, x, row, n, out);
  }
  if (s.bits == 4) return multiply_all_rows<4, 4>(s, strip, x, row, n, out);
  if (s.bits == 6) return multiply_all_rows<6, 4>(s, strip, x, row, n, out);
  return multiply_all_rows<8, 4>(s, strip, x, row, n, out);
}
