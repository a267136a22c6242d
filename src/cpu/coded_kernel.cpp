// SPDX-License-Identifier: Apache-2.0
// coded_kernel.h per SIMD target; the product's body is coded_kernel-inl.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/coded_kernel.cpp"
#include "cpu/targets.h"  // before Highway

#include <hwy/foreach_target.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/float16.h"
#include "cpu/coded_kernel.h"
#include "cpu/simd-inl.h"
#include "cpu/vnni.h"

HWY_BEFORE_NAMESPACE();
namespace kv2::cpu::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR  // the build's baseline: make_cpu_backend refuses to run on it
void MultiplyStrip(const StripShape&, const std::byte*, const CodedRows&, int, int, const StripOutput&) {
  KV2_CHECK(false, "no SIMD target");
}
void CodeRow(const float*, int, int, const CodedRows&, int) {
  KV2_CHECK(false, "no SIMD target");
}
#else
#define KV2_VNNI 0
#include "cpu/coded_kernel-inl.h"
#undef KV2_VNNI

#include "cpu/fold-inl.h"

HWY_ATTR void CodeRow(const float* in, int n_in, int block, const CodedRows& to, int row) {
  constexpr int kBatch = 16;  // blocks at once
  const Floats f;
  const Ints i;
  const int n_blocks = n_in / block;
  int8_t* halves = to.halves + static_cast<size_t>(row) * 2 * n_in;
  alignas(64) float lanes[kBatch * 16], whole_lanes[kBatch * 16];
  alignas(64) float largest[kBatch], inverse[kBatch], unit[kBatch], sum[kBatch], whole[kBatch];
  alignas(64) int32_t whole_number[kBatch];
  for (int first = 0; first < n_blocks; first += kBatch) {
    const int n = std::min(kBatch, n_blocks - first);
    const float* x = in + first * block;
    for (int b = 0; b < n; b++)
      for (size_t lane = 0; lane < 16; lane += kLanes) {
        auto top = hn::Zero(f);
        for (int c = static_cast<int>(lane); c < block; c += 16)
          top = hn::Max(top, hn::Abs(hn::LoadU(f, x + b * block + c)));
        hn::Store(top, f, lanes + 16 * b + lane);
      }
    fold_lanes<LargestOf>(lanes, n, largest);
    for (int b = 0; b < kBatch; b += static_cast<int>(kLanes)) {
      const auto l = hn::Max(hn::Load(f, largest + b), hn::Set(f, 1e-30f)), most = hn::Set(f, 32639.f);
      hn::Store(hn::Div(most, l), f, inverse + b);
      hn::Store(hn::Div(l, most), f, unit + b);
    }
    for (int b = 0; b < n; b++)
      for (size_t lane = 0; lane < 16; lane += kLanes) {
        auto s = hn::Zero(f), whole_sum = hn::Zero(f);  // whole numbers below 2^24: exact
        for (int c = static_cast<int>(lane); c < block; c += 16) {
          const auto v = hn::LoadU(f, x + b * block + c);
          const auto w = nearest(hn::Mul(v, hn::Set(f, inverse[b])));
          int8_t* high = halves + (first + b) * block + c;
          store_halves(w, high, high + n_in);
          s = hn::Add(s, v);
          whole_sum = hn::Add(whole_sum, hn::ConvertTo(f, w));
        }
        hn::Store(s, f, lanes + 16 * b + lane);
        hn::Store(whole_sum, f, whole_lanes + 16 * b + lane);
      }
    fold_lanes<SumOf>(lanes, n, sum);
    fold_lanes<SumOf>(whole_lanes, n, whole);
    for (int b = 0; b < kBatch; b += static_cast<int>(kLanes)) {
      const auto u =
          hn::Add(hn::Load(f, unit + b), hn::Mul(hn::Zero(f), hn::Load(f, sum + b)));  // NaN for NaN
      hn::Store(u, f, unit + b);
      const auto w = hn::IfThenElseZero(hn::Eq(u, u), hn::Load(f, whole + b));  // of NaN: any integer
      hn::Store(hn::ConvertTo(i, w), i, whole_number + b);
    }
    const size_t at = static_cast<size_t>(row) * static_cast<size_t>(n_blocks) + static_cast<size_t>(first),
                 bytes = sizeof(float) * static_cast<size_t>(n);
    std::memcpy(to.sum + at, sum, bytes);
    std::memcpy(to.unit + at, unit, bytes);
    std::memcpy(to.whole + at, whole_number, bytes);
  }
}
#endif
}  // namespace kv2::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_TARGET == HWY_AVX3
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace kv2::cpu::HWY_NAMESPACE::vnni {
#define KV2_VNNI 1
#include "cpu/coded_kernel-inl.h"
#undef KV2_VNNI
}  // namespace kv2::cpu::HWY_NAMESPACE::vnni
HWY_POP_ATTRIBUTES
#endif

#if HWY_ONCE
namespace kv2::cpu {

HWY_EXPORT(CodeRow);
HWY_EXPORT(MultiplyStrip);

void code_row(const float* in, int n_in, int block, const CodedRows& to, int row) {
  HWY_DYNAMIC_DISPATCH(CodeRow)(in, n_in, block, to, row);
}

void multiply_strip(const StripShape& shape, const std::byte* strip, const CodedRows& x, int first,
                    int n_rows, const StripOutput& out) {
#if HWY_TARGETS & HWY_AVX3
  if (use_vnni()) return N_AVX3::vnni::MultiplyStrip(shape, strip, x, first, n_rows, out);
#endif
  HWY_DYNAMIC_DISPATCH(MultiplyStrip)(shape, strip, x, first, n_rows, out);
}

void pack_strip(const StripShape& s, int n, const uint8_t* codes, const float* scale, const float* offset,
                std::byte* strip) {
  std::memset(strip, 0, s.strip_bytes());
  const auto param = [&](std::byte* at, int row, float value) {
    const fp16 half = to_fp16(value);
    if (s.half_params)
      std::memcpy(at + 2 * row, &half, 2);
    else
      std::memcpy(at + 4 * row, &value, 4);
  };
  for (int b = 0; b < s.n_blocks(); b++) {
    std::byte* block = strip + static_cast<size_t>(b) * s.block_bytes();
    auto* to = reinterpret_cast<uint8_t*>(block);
    for (int row = 0; row < n; row++) {
      for (int c = 0; c < s.block; c++) {
        const unsigned code = codes[static_cast<size_t>(row) * s.n_in + b * s.block + c];
        const size_t lane = static_cast<size_t>(row) * 4 + static_cast<size_t>(c % 4);
        if (s.bits == 8) {
          to[static_cast<size_t>(c / 4) * 64 + lane] = static_cast<uint8_t>(code);
          continue;
        }
        to[static_cast<size_t>(c / 8) * 64 + lane] |= static_cast<uint8_t>((code & 15) << (c % 8 / 4 * 4));
        if (s.bits == 6)
          to[static_cast<size_t>(s.block / 8 + c / 16) * 64 + lane] |=
              static_cast<uint8_t>((code >> 4) << (c % 16 / 4 * 2));
      }
      const size_t at = static_cast<size_t>(row) * s.n_blocks() + static_cast<size_t>(b);
      param(block + s.code_bytes(), row, scale[at]);
      if (s.has_offset) param(block + s.code_bytes() + s.param_bytes(), row, offset[at]);
    }
  }
}

}  // namespace kv2::cpu
#endif
