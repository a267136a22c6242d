// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/limits.cpp"
#include "cpu/targets.h"  // before Highway

#include <hwy/foreach_target.h>

#include "base/check.h"
#include "cpu/limits.h"
#include "cpu/simd-inl.h"
#include "cpu/vnni.h"

HWY_BEFORE_NAMESPACE();
namespace kv2::cpu::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR  // the build's baseline: make_cpu_backend refuses to run on it
int64_t SpinInt8(int64_t, int32_t*) {
  KV2_CHECK(false, "no SIMD target");
  return 0;
}
#else
#define KV2_VNNI 0
#include "cpu/limits-inl.h"
#undef KV2_VNNI
#endif

HWY_ATTR int64_t SpinF32(int64_t rounds, float* sink) {
  constexpr int kSums = 12;
  const Floats f;
  Vec sums[kSums];
  for (int s = 0; s < kSums; s++) sums[s] = hn::Set(f, static_cast<float>(s));
  const auto a = hn::Set(f, *sink), b = hn::Set(f, 0.5f);
  for (int64_t r = 0; r < rounds; r++)
    for (int s = 0; s < kSums; s++) sums[s] = hn::MulAdd(sums[s], b, a);
  for (int s = 1; s < kSums; s++) sums[0] = hn::Add(sums[0], sums[s]);
  *sink = hn::GetLane(hn::SumOfLanes(f, sums[0]));
  return rounds * kSums * static_cast<int64_t>(kLanes);
}

HWY_ATTR void ReadAll(const void* memory, size_t n, int32_t* sink) {
  constexpr size_t kSums = 8;
  const Ints i;
  hn::VFromD<Ints> sums[kSums];
  for (auto& s : sums) s = hn::Zero(i);
  const auto* p = static_cast<const int32_t*>(memory);
  for (size_t at = 0; at + kSums * kLanes <= n / 4; at += kSums * kLanes)
    for (size_t s = 0; s < kSums; s++) sums[s] = hn::Xor(sums[s], hn::LoadU(i, p + at + s * kLanes));
  for (size_t s = 1; s < kSums; s++) sums[0] = hn::Xor(sums[0], sums[s]);
  *sink ^= hn::GetLane(sums[0]);
}

}  // namespace kv2::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_TARGET == HWY_AVX3
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace kv2::cpu::HWY_NAMESPACE::vnni {
#define KV2_VNNI 1
#include "cpu/limits-inl.h"
#undef KV2_VNNI
}  // namespace kv2::cpu::HWY_NAMESPACE::vnni
HWY_POP_ATTRIBUTES
#endif

#if HWY_ONCE
#if defined(__x86_64__)
#include <immintrin.h>
#endif
namespace kv2::cpu {

#if defined(__x86_64__)
namespace {

__attribute__((target("avx512f,avx512bf16"))) int64_t spin_bf16_512(int64_t rounds, float* sink) {
  constexpr int kSums = 12;
  __m512 sums[kSums];
  for (int s = 0; s < kSums; s++) sums[s] = _mm512_set1_ps(static_cast<float>(s));
  const __m512bh x = _mm512_cvtne2ps_pbh(_mm512_set1_ps(*sink), _mm512_set1_ps(0.5f));
  for (int64_t r = 0; r < rounds; r++)
    for (int s = 0; s < kSums; s++) sums[s] = _mm512_dpbf16_ps(sums[s], x, x);
  for (int s = 1; s < kSums; s++) sums[0] = _mm512_add_ps(sums[0], sums[s]);
  *sink = _mm512_reduce_add_ps(sums[0]);
  return rounds * kSums * 32;
}

}  // namespace
#endif

int64_t spin_bf16(int64_t rounds, float* sink) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) return spin_bf16_512(rounds, sink);
#endif
  return 0;
}

HWY_EXPORT(SpinF32);
HWY_EXPORT(SpinInt8);
HWY_EXPORT(ReadAll);

int64_t spin_f32(int64_t rounds, float* sink) {
  return HWY_DYNAMIC_DISPATCH(SpinF32)(rounds, sink);
}
int64_t spin_int8(int64_t rounds, int32_t* sink) {
#if HWY_TARGETS & HWY_AVX3
  if (use_vnni()) return N_AVX3::vnni::SpinInt8(rounds, sink);
#endif
  return HWY_DYNAMIC_DISPATCH(SpinInt8)(rounds, sink);
}
void read_all(const void* memory, size_t n, int32_t* sink) {
  HWY_DYNAMIC_DISPATCH(ReadAll)(memory, n, sink);
}

}  // namespace kv2::cpu
#endif
