// SPDX-License-Identifier: Apache-2.0
// Bodies of elementwise.h per SIMD target. Ends of rows that fill no vector go through a padded copy.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise.cpp"
#include "cpu/targets.h"  // before Highway

#include <hwy/foreach_target.h>

#include <algorithm>
#include <cmath>

#include "cpu/elementwise.h"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kv2::cpu::HWY_NAMESPACE {

/// The last n < lanes values of a row, through a padded copy: the vector code has one body and no second
/// arithmetic.
struct Tail {
  HWY_ATTR Tail(const float* from, size_t n) {
    for (size_t i = 0; i < kLanes; i++) x[i] = i < n ? from[i] : 0.f;
  }
  HWY_ATTR Vec get() const { return hn::LoadU(Floats(), x); }
  float x[kLanes];
};
HWY_ATTR Vec load_n(const float* p, size_t n) {
  return n >= kLanes ? hn::LoadU(Floats(), p) : Tail(p, n).get();
}
HWY_ATTR void store_n(Vec x, float* p, size_t n) {
  if (n >= kLanes) return hn::StoreU(x, Floats(), p);
  float copy[kLanes];
  hn::StoreU(x, Floats(), copy);
  for (size_t i = 0; i < n; i++) p[i] = copy[i];
}

/// Squares are summed in 16 lanes (index mod 16) on every target.
HWY_ATTR void RmsNormRow(const float* in, const float* weight, float* out, size_t width, float epsilon) {
  const Floats f;
  float lanes[16] = {};
  for (size_t lane = 0; lane < 16; lane += kLanes) {
    auto sum = hn::Zero(f);
    for (size_t i = lane; i < width; i += 16) {
      const auto x = load_n(in + i, width - i);
      sum = hn::MulAdd(x, x, sum);
    }
    hn::StoreU(sum, f, lanes + lane);
  }
  const float mean = sum_of_16(lanes) / static_cast<float>(width);
  const auto factor = hn::Set(f, 1.f / std::sqrt(mean + epsilon));
  for (size_t i = 0; i < width; i += kLanes) {
    const size_t n = width - i;
    store_n(hn::Mul(hn::Mul(load_n(in + i, n), factor), load_n(weight + i, n)), out + i, n);
  }
}

HWY_ATTR void SwigluRow(const float* gate, const float* up, float* out, size_t width) {
  const Floats f;
  for (size_t i = 0; i < width; i += kLanes) {
    const size_t n = width - i;
    const auto g = load_n(gate + i, n);
    const auto silu = hn::Div(g, hn::Add(hn::Set(f, 1.f), exp_of(hn::Neg(g))));
    store_n(hn::Mul(silu, load_n(up + i, n)), out + i, n);
  }
}

HWY_ATTR void RopeHalves(float* x, size_t half, const float* cosines, const float* sines) {
  for (size_t i = 0; i < half; i += kLanes) {
    const size_t n = half - i;
    const auto a = load_n(x + i, n), b = load_n(x + half + i, n), c = load_n(cosines + i, n),
               s = load_n(sines + i, n);
    store_n(hn::MulSub(a, c, hn::Mul(b, s)), x + i, n);
    store_n(hn::MulAdd(b, c, hn::Mul(a, s)), x + half + i, n);
  }
}

HWY_ATTR void MultiplyHeads(const float* const* in, float* const* out, int n, int d, const float* matrix,
                            const float* mean, const float* add, float* scratch) {
  const Floats f;
  float* product = scratch + static_cast<size_t>(kRows) * d;
  for (int r = 0; r < n; r++)
    for (int i = 0; i < d; i += static_cast<int>(kLanes)) {
      auto x = hn::LoadU(f, in[r] + i);
      if (mean) x = hn::Sub(x, hn::LoadU(f, mean + i));
      hn::StoreU(x, f, scratch + static_cast<size_t>(r) * d + i);
    }
  multiply(n, scratch, d, d, matrix, d, product, d, d, Start::Zero);
  for (int r = 0; r < n; r++)
    for (int i = 0; i < d; i += static_cast<int>(kLanes)) {
      auto x = hn::LoadU(f, product + static_cast<size_t>(r) * d + i);
      if (add) x = hn::Add(x, hn::LoadU(f, add + i));
      hn::StoreU(x, f, out[r] + i);
    }
}

/// Lanes keep the first of their largest; NaN is greater than nothing.
HWY_ATTR int32_t ArgMaxOfRow(const float* values, size_t n) {
  const Floats f;
  const Ints i;
  auto best = hn::Set(f, -HUGE_VALF);
  auto at = hn::Set(i, -1), here = hn::Iota(i, 0);
  size_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    const auto x = hn::LoadU(f, values + k);
    const auto greater = hn::Gt(x, best);
    best = hn::IfThenElse(greater, x, best);
    at = hn::IfThenElse(hn::RebindMask(i, greater), here, at);
    here = hn::Add(here, hn::Set(i, static_cast<int32_t>(kLanes)));
  }
  float top[kLanes];
  int32_t top_at[kLanes];
  hn::StoreU(best, f, top);
  hn::StoreU(at, i, top_at);
  float largest = -HUGE_VALF;
  int32_t first = -1;
  for (size_t lane = 0; lane < kLanes; lane++)
    if (top[lane] > largest || (top[lane] == largest && top_at[lane] < first)) {
      largest = top[lane];
      first = top_at[lane];
    }
  for (; k < n; k++)
    if (values[k] > largest) {
      largest = values[k];
      first = static_cast<int32_t>(k);
    }
  return first;
}

HWY_ATTR void ToBf16Row(const float* in, size_t n, bf16* out) {
  auto* words = reinterpret_cast<uint16_t*>(out);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_bf16(hn::LoadU(Floats(), in + i), words + i);
  for (; i < n; i++) out[i] = to_bf16(in[i]);
}

HWY_ATTR void FromBf16Row(const bf16* in, size_t n, float* out) {
  const auto* words = reinterpret_cast<const uint16_t*>(in);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(load_bf16(words + i), Floats(), out + i);
  for (; i < n; i++) out[i] = to_float(in[i]);
}

HWY_ATTR void StoreRow(const float* from, const float* bias, Accumulate accumulate, size_t width, float* to) {
  for (size_t i = 0; i < width; i += kLanes) {
    const size_t n = width - i;
    auto x = load_n(from + i, n);
    if (bias) x = hn::Add(x, load_n(bias + i, n));
    if (accumulate == Accumulate::Yes) x = hn::Add(x, load_n(to + i, n));
    store_n(x, to + i, n);
  }
}

/// 16 x 16 values, `stride` apart on both sides.
HWY_ATTR void transpose_block(const float* in, size_t stride, float* out) {
#if HWY_TARGET == HWY_AVX3
  __m512 a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    const __m512 x = _mm512_loadu_ps(in + i * stride), y = _mm512_loadu_ps(in + (i + 1) * stride);
    a[i] = _mm512_unpacklo_ps(x, y);
    a[i + 1] = _mm512_unpackhi_ps(x, y);
  }
  const auto pd = [](__m512 x) HWY_ATTR { return _mm512_castps_pd(x); };
  const auto ps = [](__m512d x) HWY_ATTR { return _mm512_castpd_ps(x); };
  for (int i = 0; i < 16; i += 4)  // 128 bits l of b[i + c]: column 4l + c of rows i … i + 3
    for (int half = 0; half < 2; half++) {
      const __m512d x = pd(a[i + half]), y = pd(a[i + 2 + half]);
      b[i + 2 * half] = ps(_mm512_unpacklo_pd(x, y));
      b[i + 2 * half + 1] = ps(_mm512_unpackhi_pd(x, y));
    }
  for (int c = 0; c < 4; c++) {
    const __m512 even_low = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x88),
                 even_high = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x88),
                 odd_low = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xdd),
                 odd_high = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xdd);
    _mm512_storeu_ps(out + c * stride, _mm512_shuffle_f32x4(even_low, even_high, 0x88));
    _mm512_storeu_ps(out + (4 + c) * stride, _mm512_shuffle_f32x4(odd_low, odd_high, 0x88));
    _mm512_storeu_ps(out + (8 + c) * stride, _mm512_shuffle_f32x4(even_low, even_high, 0xdd));
    _mm512_storeu_ps(out + (12 + c) * stride, _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd));
  }
#else
  for (size_t i = 0; i < 16; i++)
    for (size_t j = 0; j < 16; j++) out[i * stride + j] = in[j * stride + i];
#endif
}

HWY_ATTR void TransposeMatrix(const float* in, int d, float* out) {
  const size_t stride = static_cast<size_t>(d);
  for (size_t i = 0; i < stride; i += 16)
    for (size_t j = 0; j < stride; j += 16)
      transpose_block(in + j * stride + i, stride, out + i * stride + j);
}

}  // namespace kv2::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv2::cpu {

HWY_EXPORT(RmsNormRow);
HWY_EXPORT(SwigluRow);
HWY_EXPORT(RopeHalves);
HWY_EXPORT(MultiplyHeads);
HWY_EXPORT(ArgMaxOfRow);
HWY_EXPORT(ToBf16Row);
HWY_EXPORT(FromBf16Row);
HWY_EXPORT(StoreRow);
HWY_EXPORT(TransposeMatrix);

void rms_norm_rows(const RmsNormParams& p, int first, int n) {
  const size_t width = static_cast<size_t>(p.width);
  for (int r = first; r < first + n; r++)
    HWY_DYNAMIC_DISPATCH(RmsNormRow)(p.in + r * width, p.weight, p.out + r * width, width, p.epsilon);
}

void swiglu_rows(const SwigluParams& p, int first, int n) {
  const size_t width = static_cast<size_t>(p.width);
  for (int r = first; r < first + n; r++)
    HWY_DYNAMIC_DISPATCH(SwigluRow)(p.gate + r * p.stride, p.up + r * p.stride, p.out + r * width, width);
}

// A float angle would be off by up to 4e-3 radians at position 131071.
void rope_angles(int64_t position, const float* inv_frequency, int head_dim, float* cosines, float* sines) {
  for (int i = 0; i < head_dim / 2; i++) {
    const double angle = static_cast<double>(position) * inv_frequency[i];
    cosines[i] = static_cast<float>(std::cos(angle));
    sines[i] = static_cast<float>(std::sin(angle));
  }
}

void rope_row(float* x, int n_heads, int head_dim, RopePairing pairing, const float* cosines,
              const float* sines) {
  const int half = head_dim / 2;
  for (int h = 0; h < n_heads; h++, x += head_dim) {
    if (pairing == RopePairing::Halves) {
      HWY_DYNAMIC_DISPATCH(RopeHalves)(x, static_cast<size_t>(half), cosines, sines);
      continue;
    }
    for (int i = 0; i < half; i++) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * cosines[i] - b * sines[i];
      x[2 * i + 1] = a * sines[i] + b * cosines[i];
    }
  }
}

void multiply_heads(const float* const* in, float* const* out, int n, int d, const float* matrix,
                    const float* mean, const float* add, float* scratch) {
  HWY_DYNAMIC_DISPATCH(MultiplyHeads)(in, out, n, d, matrix, mean, add, scratch);
}

void transpose_matrix(const float* in, int d, float* out) {
  HWY_DYNAMIC_DISPATCH(TransposeMatrix)(in, d, out);
}

int32_t arg_max_of_row(const float* values, size_t n) {
  return HWY_DYNAMIC_DISPATCH(ArgMaxOfRow)(values, n);
}

void to_bf16_row(const float* in, size_t n, bf16* out) {
  HWY_DYNAMIC_DISPATCH(ToBf16Row)(in, n, out);
}
void from_bf16_row(const bf16* in, size_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(FromBf16Row)(in, n, out);
}
void store_row(const float* from, const float* bias, Accumulate accumulate, int n, float* to) {
  HWY_DYNAMIC_DISPATCH(StoreRow)(from, bias, accumulate, static_cast<size_t>(n), to);
}

}  // namespace kv2::cpu
#endif
