// SPDX-License-Identifier: Apache-2.0
// Shared by the SIMD files of this folder, once per target: vector types, exp, bf16 and a matrix product
// whose sums run in index order with one fma each. Invariant: a result's bits depend on its own inputs alone,
// not on the row block, column block or vector width that computed it. Compiled with -ffp-contract=off: fma
// only where written.
#if defined(KV2_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KV2_CPU_SIMD_INL_H_
#undef KV2_CPU_SIMD_INL_H_
#else
#define KV2_CPU_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace kv2::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Head dims and pages are multiples of 16 floats, so whole vectors of every target.
using Floats = hn::CappedTag<float, 16>;
using Ints = hn::RebindToSigned<Floats>;
using Words = hn::RebindToUnsigned<Floats>;
using Halves = hn::Rebind<uint16_t, Floats>;
using Bytes = hn::Rebind<uint8_t, Floats>;
using Vec = hn::VFromD<Floats>;
constexpr size_t kLanes = hn::MaxLanes(Floats());

/// No less than `least` and no greater than `most`; NaN stays. x86 returns the second operand where one is
/// NaN, Highway on Arm the number, the instructions used here the NaN.
inline HWY_ATTR Vec no_less(Vec least, Vec x) {
#if HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64
  return Vec(vmaxq_f32(least.raw, x.raw));
#else
  return hn::Max(least, x);
#endif
}
inline HWY_ATTR Vec no_greater(Vec most, Vec x) {
#if HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64
  return Vec(vminq_f32(most.raw, x.raw));
#else
  return hn::Min(most, x);
#endif
}

/// e^x with an error of about 1 ulp; 0 below -87.33 (where e^x leaves the normal range), e^88.7 above that;
/// NaN for NaN.
inline HWY_ATTR Vec exp_of(Vec x) {
  const Floats f;
  const Ints i;
  const auto low = hn::Set(f, -87.33f);
  const auto tiny = hn::Lt(x, low);
  x = no_greater(hn::Set(f, 88.7f), no_less(low, x));
  const auto n = hn::Round(hn::Mul(x, hn::Set(f, 1.44269504f)));
  auto r = hn::NegMulAdd(n, hn::Set(f, 0x1.62e4p-1f), x);  // ln 2 in two parts, the first exact in 15 bits
  r = hn::NegMulAdd(n, hn::Set(f, 1.42860677e-6f), r);
  auto p = hn::Set(f, 1.f / 5040);
  p = hn::MulAdd(p, r, hn::Set(f, 1.f / 720));
  p = hn::MulAdd(p, r, hn::Set(f, 1.f / 120));
  p = hn::MulAdd(p, r, hn::Set(f, 1.f / 24));
  p = hn::MulAdd(p, r, hn::Set(f, 1.f / 6));
  p = hn::MulAdd(p, r, hn::Set(f, 0.5f));
  p = hn::MulAdd(p, r, hn::Set(f, 1.f));
  p = hn::MulAdd(p, r, hn::Set(f, 1.f));
  const auto power = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(i, n), hn::Set(i, 127)));
  return hn::IfThenZeroElse(tiny, hn::Mul(p, hn::BitCast(f, power)));
}

/// e^x for x <= 0 (and what a softmax makes of rounding above it) with a relative error of 5e-7, 1 at 0,
/// where e^x leaves the normal range 1e-38 or less; NaN for NaN. Two thirds of exp_of's operations, with
/// AVX-512, which splits and scales by powers of two in one each, less than half.
inline HWY_ATTR Vec exp_below(Vec x) {
  const Floats f;
#if HWY_TARGET == HWY_AVX3
  const auto y = hn::Mul(x, hn::Set(f, 1.44269504f));
  const auto r = Vec{_mm512_reduce_ps(y.raw, 1)};  // y − floor(y)
  auto p = hn::Set(f, 0x1.e97502p-10f);            // 2^r, 0 <= r < 1: relative error 1.4e-7 with p(0) = 1
  p = hn::MulAdd(p, r, hn::Set(f, 0x1.277852p-7f));
  p = hn::MulAdd(p, r, hn::Set(f, 0x1.c91ce6p-5f));
  p = hn::MulAdd(p, r, hn::Set(f, 0x1.ebdb56p-3f));
  p = hn::MulAdd(p, r, hn::Set(f, 0x1.62e4bap-1f));
  p = hn::MulAdd(p, r, hn::Set(f, 1.f));
  return Vec{_mm512_scalef_ps(p.raw, y.raw)};
#else
  const Words w;
  const auto magic = hn::Set(f, 12582912.f);  // 1.5·2^23: a sum with it ends in the nearest whole number
  const auto y = no_less(hn::Set(f, -126.f), hn::Mul(x, hn::Set(f, 1.44269504f)));
  const auto shifted = hn::Add(y, magic);
  const auto r = hn::Sub(y, hn::Sub(shifted, magic));
  auto p = hn::Set(f, 0x1.23a608p-10f);  // 2^r, |r| <= 1/2: best relative error with p(0) = 1
  p = hn::MulAdd(p, r, hn::Set(f, 0x1.3cbea8p-7f));
  p = hn::MulAdd(p, r, hn::Set(f, 0x1.c74322p-5f));
  p = hn::MulAdd(p, r, hn::Set(f, 0x1.ebfa4ep-3f));
  p = hn::MulAdd(p, r, hn::Set(f, 0x1.62e39ep-1f));
  p = hn::MulAdd(p, r, hn::Set(f, 1.f));
  const auto power = hn::Add(hn::ShiftLeft<23>(hn::BitCast(w, shifted)), hn::Set(w, 0x3f800000u));
  return hn::Mul(p, hn::BitCast(f, power));
#endif
}

inline HWY_ATTR float exp_of(float x) {
  return hn::GetLane(exp_of(hn::Set(Floats(), x)));
}

/// cap·tanh(x / cap) with tanh(y) = sign(y)·(1 − e) / (1 + e), e = exp(−2|y|).
inline HWY_ATTR Vec soft_capped(Vec x, float cap) {
  const Floats f;
  const auto y = hn::Div(x, hn::Set(f, cap)), one = hn::Set(f, 1.f);
  const auto e = exp_of(hn::Mul(hn::Abs(y), hn::Set(f, -2.f)));
  return hn::Mul(hn::Set(f, cap), hn::CopySign(hn::Div(hn::Sub(one, e), hn::Add(one, e)), y));
}

/// bf16 bits to float: exact.
inline HWY_ATTR Vec load_bf16(const uint16_t* p) {
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), hn::LoadU(Halves(), p))));
}

/// Nearest even, quiet NaN: the bits of base/float16.h (Highway 1.0.3 truncates on x86).
inline HWY_ATTR void store_bf16(Vec x, uint16_t* p) {
  const Words w;
  const auto u = hn::BitCast(w, x);
  const auto is_nan = hn::Gt(hn::And(u, hn::Set(w, 0x7fffffffu)), hn::Set(w, 0x7f800000u));
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(w, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(u, hn::Add(odd, hn::Set(w, 0x7fff))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(u), hn::Set(w, 0x40));
  const auto bits = hn::IfThenElse(is_nan, quiet, rounded);
  hn::StoreU(hn::DemoteTo(Halves(), hn::BitCast(Ints(), bits)), Halves(), p);
}

/// The sum of 16 lanes kept in memory, in one fixed tree on every target.
inline float sum_of_16(const float* x) {
  float a[8];
  for (int i = 0; i < 8; i++) a[i] = x[i] + x[i + 8];
  return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

// Register block of the matrix product: kRows x kVectors accumulators beside one row of B.
constexpr int kRows = 6;
constexpr int kVectors = HWY_TARGET == HWY_AVX2 ? 2 : 4;

enum class Start { Zero, FromC };

/// B may be float or bf16 bits (uint16_t): the same products, as bf16 to float is exact.
inline HWY_ATTR Vec load_b(const float* p) {
  return hn::LoadU(Floats(), p);
}
inline HWY_ATTR Vec load_b(const uint16_t* p) {
  return load_bf16(p);
}

/// What a product fetches meanwhile: `lines` of 64 bytes at every step of its depth.
struct Fetch {
  const std::byte* at = nullptr;
  size_t lines = 0;

  HWY_INLINE void step(int k) const {
    for (size_t i = 0; i < lines; i++) __builtin_prefetch(at + (static_cast<size_t>(k) * lines + i) * 64);
    asm volatile("");  // else GCC 12 may take this function for pure and drop its calls
  }
};
struct NoFetch {
  HWY_INLINE void step(int) const {}
};

/// C[R, V·lanes] = (0 or C) + A[R, depth]·B[depth, V·lanes].
template <int R, int V, class B, class F = NoFetch>
HWY_ATTR void multiply_block(const float* HWY_RESTRICT a, size_t lda, int depth, const B* HWY_RESTRICT b,
                             size_t ldb, float* HWY_RESTRICT c, size_t ldc, Start start,
                             const F& fetch = F()) {
  const Floats f;
  Vec sum[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++)
      sum[r][v] = start == Start::Zero ? hn::Zero(f) : hn::LoadU(f, c + r * ldc + v * kLanes);
  for (int k = 0; k < depth; k++, b += ldb) {
    fetch.step(k);
    Vec row[V];
    for (int v = 0; v < V; v++) row[v] = load_b(b + v * kLanes);
    for (int r = 0; r < R; r++) {
      const auto x = hn::Set(f, a[r * lda + k]);
      for (int v = 0; v < V; v++) sum[r][v] = hn::MulAdd(x, row[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) hn::StoreU(sum[r][v], f, c + r * ldc + v * kLanes);
}

/// The same for any number of columns that is a multiple of 16.
template <int R, class B, class F>
HWY_ATTR void multiply_rows(const float* a, size_t lda, int depth, const B* b, size_t ldb, float* c,
                            size_t ldc, int columns, Start start, const F& fetch) {
  const int vectors = columns / static_cast<int>(kLanes);
  int v = 0;
  if (kVectors <= vectors) {
    multiply_block<R, kVectors>(a, lda, depth, b, ldb, c, ldc, start, fetch);
    v = kVectors;
  }
  for (; v + kVectors <= vectors; v += kVectors)
    multiply_block<R, kVectors>(a, lda, depth, b + v * kLanes, ldb, c + v * kLanes, ldc, start);
  if constexpr (kVectors == 4) {
    if (v + 2 <= vectors) {
      multiply_block<R, 2>(a, lda, depth, b + v * kLanes, ldb, c + v * kLanes, ldc, start);
      v += 2;
    }
  }
  if (v < vectors) multiply_block<R, 1>(a, lda, depth, b + v * kLanes, ldb, c + v * kLanes, ldc, start);
}

/// rows in 1..kRows.
template <class B, class F = NoFetch>
inline HWY_ATTR void multiply(int rows, const float* a, size_t lda, int depth, const B* b, size_t ldb,
                              float* c, size_t ldc, int columns, Start start, const F& fetch = F()) {
  switch (rows) {
    case 1:
      return multiply_rows<1>(a, lda, depth, b, ldb, c, ldc, columns, start, fetch);
    case 2:
      return multiply_rows<2>(a, lda, depth, b, ldb, c, ldc, columns, start, fetch);
    case 3:
      return multiply_rows<3>(a, lda, depth, b, ldb, c, ldc, columns, start, fetch);
    case 4:
      return multiply_rows<4>(a, lda, depth, b, ldb, c, ldc, columns, start, fetch);
    case 5:
      return multiply_rows<5>(a, lda, depth, b, ldb, c, ldc, columns, start, fetch);
    default:
      return multiply_rows<6>(a, lda, depth, b, ldb, c, ldc, columns, start, fetch);
  }
}

}  // namespace kv2::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KV2_CPU_SIMD_INL_H_
