// SPDX-License-Identifier: Apache-2.0
// encode_rows: the Highway twin of the specification in feedback.cpp, tokens in lanes, bit-identical on every
// target: every step is the same fp32 operation as there, in the same order for each token. The work is the
// triangular sums w_j = z_j − Σ_{i<j} t_i·F_ij of a chunk of tokens at once: solve() keeps a block of
// kColumns channels times kVectors vectors in registers, reads t_i once per block, and lets `finish` turn
// each w_j into t_j. Targets without a fused multiply-add get one by element, slow and exact.
#include <hwy/detect_targets.h>
// Vectors of scalable size cannot be array elements; x86 before AVX2 has no fma.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS                                                                     \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_WASM | \
   HWY_WASM_EMU256)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/feedback/feedback_simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstring>

#include "quant/columns-inl.h"
#include "quant/feedback/feedback.h"

HWY_BEFORE_NAMESPACE();
namespace kv2::feedback::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using columns::HWY_NAMESPACE::make_finite;
using columns::HWY_NAMESPACE::round_to_half;
using columns::HWY_NAMESPACE::transpose;
using columns::HWY_NAMESPACE::widen;

using F = hn::CappedTag<float, 16>;
using I = hn::RebindToSigned<F>;
using B = hn::Rebind<uint8_t, F>;
using V = hn::VFromD<F>;

constexpr size_t kLanes = hn::MaxLanes(F());
constexpr size_t kVectors = 4, kChunk = kVectors * kLanes;  // tokens at once; divides 64
// 16 accumulators where there are 32 registers, else 8.
#if HWY_TARGET == HWY_AVX2
constexpr size_t kColumns = 2;
#else
constexpr size_t kColumns = 4;
#endif
constexpr size_t kMaxGroups = kMaxHeadDim / 4;

HWY_INLINE V fused(V a, V b, V c) {  // a·b + c, one rounding
#if HWY_NATIVE_FMA
  return hn::MulAdd(a, b, c);
#else
  HWY_ALIGN float x[kLanes], y[kLanes], z[kLanes];
  hn::Store(a, F(), x), hn::Store(b, F(), y), hn::Store(c, F(), z);
  for (size_t i = 0; i < kLanes; ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return hn::Load(F(), z);
#endif
}
HWY_INLINE V fused_less(V a, V b, V c) {  // c − a·b, one rounding
#if HWY_NATIVE_FMA
  return hn::NegMulAdd(a, b, c);
#else
  return fused(hn::Neg(a), b, c);
#endif
}

/// x clamped to [0, top], NaN as 0.
HWY_INLINE V within(V x, V top) {
  const V zero = hn::Zero(F());
#if HWY_ARCH_X86 && HWY_NATIVE_FMA
  return hn::Min(hn::Max(x, zero), top);  // of NaN and a number x86 gives the second operand
#else
  const V low = hn::IfThenElseZero(hn::Gt(x, zero), x);
  return hn::IfThenElse(hn::Lt(low, top), low, top);
#endif
}

HWY_INLINE V half_within(V x, float low, float high) {
  const V bottom = hn::Set(F(), low), ceiling = hn::Set(F(), high);
  const V below = hn::IfThenElse(hn::Lt(x, ceiling), x, ceiling);
  HWY_ALIGN uint16_t bits[kLanes];
  return round_to_half(hn::IfThenElse(hn::Gt(x, bottom), below, bottom), bits);
}
HWY_INLINE V half_scale(V x) {
  return half_within(x, 0x1p-24f, 65504.0f);
}
HWY_INLINE V half_offset(V x) {
  return half_within(x, -65504.0f, 65504.0f);
}

/// [n][kChunk] floats; row(i)[v] is vector v.
HWY_INLINE V at(const float* rows, size_t i, size_t v) {
  return hn::Load(F(), rows + i * kChunk + v * kLanes);
}
HWY_INLINE void put(float* rows, size_t i, size_t v, V x) {
  hn::Store(x, F(), rows + i * kChunk + v * kLanes);
}

/// For channels j = first … d−1: w_j = load(j) − Σ_{first<=i<j} t_i·F_ij in order of i, t_j = finish(j, w_j).
/// first and d are multiples of 4.
template <class LoadColumn, class Finish>
HWY_INLINE void solve(const float* f, size_t first, size_t d, float* t, const LoadColumn& load,
                      const Finish& finish) {
  for (size_t j0 = first; j0 < d; j0 += kColumns) {
    V w[kColumns][kVectors];
    for (size_t k = 0; k < kColumns; ++k)
      for (size_t v = 0; v < kVectors; ++v) w[k][v] = load(j0 + k, v);
    for (size_t i = first; i < j0; ++i) {
      const float* row = f + i * d + j0;
      const V t0 = at(t, i, 0), t1 = at(t, i, 1), t2 = at(t, i, 2), t3 = at(t, i, 3);
      for (size_t k = 0; k < kColumns; ++k) {
        const V factor = hn::Set(F(), row[k]);
        w[k][0] = fused_less(t0, factor, w[k][0]);
        w[k][1] = fused_less(t1, factor, w[k][1]);
        w[k][2] = fused_less(t2, factor, w[k][2]);
        w[k][3] = fused_less(t3, factor, w[k][3]);
      }
    }
    for (size_t k = 0; k < kColumns; ++k) {
      for (size_t v = 0; v < kVectors; ++v) w[k][v] = finish(j0 + k, v, w[k][v]);
      for (size_t v = 0; v < kVectors; ++v) put(t, j0 + k, v, w[k][v]);
      for (size_t l = k + 1; l < kColumns; ++l) {
        const V factor = hn::Set(F(), f[(j0 + k) * d + j0 + l]);
        for (size_t v = 0; v < kVectors; ++v) w[l][v] = fused_less(w[k][v], factor, w[l][v]);
      }
    }
  }
}

/// Scale and offset of every group, and what code() makes of them for a channel.
struct Fit {
  HWY_ALIGN float s[kMaxGroups * kChunk];
  HWY_ALIGN float o[kMaxGroups * kChunk];
};

/// kChunk tokens.
class ChunkCoder {
 public:
  ChunkCoder(const uint16_t* columns, const Options& options, const FeedbackTables& tables)
      : columns_(columns),
        tables_(tables),
        search_(options.search),
        d_(static_cast<size_t>(options.head_dim)),
        group_(static_cast<size_t>(options.group)),
        n_groups_(d_ / group_),
        top_(static_cast<float>(options.top())),
        half_top_(top_ / 2),
        unit_step_(unit_step(options.bits)),
        stored_(options.offset == Offset::Stored) {}

  void run(const Columns& out, size_t token) {
    for (size_t g = 0; g < n_groups_; ++g) measure(g);
    bool first = true;
    for (int i = 0; i < search_.n_steps; ++i) {
      start(search_.steps[i]);
      code();
      keep(first, out, token);
      first = false;
      for (int k = 0; k < search_.refits; ++k) {
        for (size_t g = 0; g < n_groups_; ++g) refit(g);
        code();
        keep(first, out, token);
      }
    }
    write_fit(out, token);
  }

 private:
  V y(size_t j, size_t v) const { return widen(columns_ + j * kPageTokens + v * kLanes); }

  void measure(size_t g) {
    const V n = hn::Set(F(), static_cast<float>(group_)), unit = hn::Set(F(), unit_step_);
    for (size_t v = 0; v < kVectors; ++v) {
      V mean = hn::Zero(F()), square = hn::Zero(F());
      if (stored_) {
        for (size_t i = g * group_; i < (g + 1) * group_; ++i) mean = hn::Add(mean, y(i, v));
        mean = hn::Div(mean, n);
      }
      for (size_t i = g * group_; i < (g + 1) * group_; ++i) {
        const V e = hn::Sub(y(i, v), mean);
        square = fused(e, e, square);
      }
      put(mean_, g, v, mean);
      put(unit_, g, v, hn::Mul(hn::Sqrt(hn::Div(square, n)), unit));
    }
  }

  V centred(V s) const { return hn::Mul(hn::Set(F(), -half_top_), s); }

  void start(float step) {
    for (size_t g = 0; g < n_groups_; ++g) {
      for (size_t v = 0; v < kVectors; ++v) {
        const V s = half_scale(hn::Mul(hn::Set(F(), step), at(unit_, g, v)));
        put(fit_.s, g, v, s);
        const V o = fused_less(hn::Set(F(), half_top_), s, at(mean_, g, v));
        put(fit_.o, g, v, stored_ ? half_offset(o) : centred(s));
      }
    }
  }

  void code() {
    const V one = hn::Set(F(), 1.0f), half = hn::Set(F(), 0.5f), top = hn::Set(F(), top_);
    for (size_t g = 0; g < n_groups_; ++g) {
      for (size_t v = 0; v < kVectors; ++v) {
        const V inverse = hn::Div(one, at(fit_.s, g, v));
        put(inverse_, g, v, inverse);
        put(bias_, g, v, fused_less(at(fit_.o, g, v), inverse, half));
      }
    }
    V error[kVectors];
    for (V& e : error) e = hn::Zero(F());
    const auto load = [&](size_t j, size_t v) HWY_ATTR { return y(j, v); };
    const auto finish = [&](size_t j, size_t v, V w) HWY_ATTR {
      const size_t g = j / group_;
      const V level = fused(w, at(inverse_, g, v), at(bias_, g, v));
      const auto c = hn::ConvertTo(I(), within(level, top));  // not negative: truncation is floor
      hn::StoreU(hn::DemoteTo(B(), c), B(), codes_ + j * kChunk + v * kLanes);
      const V r = fused_less(at(fit_.s, g, v), hn::ConvertTo(F(), c), hn::Sub(w, at(fit_.o, g, v)));
      error[v] = fused(hn::Mul(hn::Set(F(), tables_.weight[j]), r), r, error[v]);
      return r;
    };
    solve(tables_.f, 0, d_, r_, load, finish);
    for (size_t v = 0; v < kVectors; ++v) put(error_, 0, v, error[v]);
  }

  void refit(size_t g) {
    const size_t first = g * group_, end = first + group_;
    const V centre = hn::Set(F(), stored_ ? 0.0f : half_top_);
    const auto load = [&](size_t j, size_t v) HWY_ATTR {
      if (j >= end) return hn::Zero(F());
      const auto c = hn::PromoteTo(I(), hn::LoadU(B(), codes_ + j * kChunk + v * kLanes));
      return hn::Sub(hn::ConvertTo(F(), c), centre);
    };
    const auto finish = [&](size_t, size_t, V w) HWY_ATTR { return w; };
    solve(tables_.f, first, d_, t_, load, finish);
    const float* ones = tables_.ones + g * d_;
    for (size_t v = 0; v < kVectors; ++v) {
      const V s = at(fit_.s, g, v), o = at(fit_.o, g, v);
      stored_ ? refit_pair(g, v, ones) : refit_scale(g, v);
      if (g + 1 == n_groups_) continue;
      const V ds = hn::Sub(s, at(fit_.s, g, v)), d_o = hn::Sub(o, at(fit_.o, g, v));
      for (size_t j = first; j < d_; ++j) {
        V r = fused(ds, at(t_, j, v), at(r_, j, v));
        if (stored_) r = fused(d_o, hn::Set(F(), ones[j]), r);
        put(r_, j, v, r);
      }
    }
  }

  void refit_pair(size_t g, size_t v, const float* ones) {
    const V zero = hn::Zero(F()), huge = hn::Set(F(), 0x1p40f);
    V tt = zero, t1 = zero, tr = zero, one1 = zero, one_r = zero;
    for (size_t j = g * group_; j < d_; ++j) {
      const V t = at(t_, j, v), r = at(r_, j, v), one = hn::Set(F(), ones[j]);
      const V weight = hn::Set(F(), tables_.weight[j]), wt = hn::Mul(weight, t), w1 = hn::Mul(weight, one);
      tt = fused(wt, t, tt);
      t1 = fused(wt, one, t1);
      tr = fused(wt, r, tr);
      one1 = fused(w1, one, one1);
      one_r = fused(w1, r, one_r);
    }
    const V old_s = at(fit_.s, g, v), old_o = at(fit_.o, g, v);
    const V det = fused(tt, one1, hn::Neg(hn::Mul(t1, t1)));
    const V s = hn::Add(old_s, hn::Div(fused(tr, one1, hn::Neg(hn::Mul(one_r, t1))), det));
    const V o = hn::Add(old_o, hn::Div(fused(one_r, tt, hn::Neg(hn::Mul(tr, t1))), det));
    const auto sound = hn::And(hn::And(hn::Gt(det, zero), hn::Gt(s, zero)),
                               hn::And(hn::Lt(s, huge), hn::Lt(hn::Abs(o), huge)));
    put(fit_.s, g, v, hn::IfThenElse(sound, half_scale(s), old_s));
    put(fit_.o, g, v, hn::IfThenElse(sound, half_offset(o), old_o));
  }

  void refit_scale(size_t g, size_t v) {
    const V zero = hn::Zero(F());
    V tt = zero, tr = zero;
    for (size_t j = g * group_; j < d_; ++j) {
      const V t = at(t_, j, v), wt = hn::Mul(hn::Set(F(), tables_.weight[j]), t);
      tt = fused(wt, t, tt);
      tr = fused(wt, at(r_, j, v), tr);
    }
    const V old_s = at(fit_.s, g, v), s = hn::Add(old_s, hn::Div(tr, tt));
    const auto sound = hn::And(hn::Gt(tt, zero), hn::And(hn::Gt(s, zero), hn::Lt(s, hn::Set(F(), 0x1p40f))));
    const V kept = hn::IfThenElse(sound, half_scale(s), old_s);
    put(fit_.s, g, v, kept);
    put(fit_.o, g, v, centred(kept));
  }

  /// Codes and fit of the tokens whose error fell, or of all of them.
  void keep(bool all, const Columns& out, size_t token) {
    if (all) {
      for (size_t v = 0; v < kVectors; ++v) {
        const V infinity = hn::Set(F(), HUGE_VALF), e = at(error_, 0, v);
        put(least_, 0, v, hn::IfThenElse(hn::Lt(e, infinity), e, infinity));
      }
      for (size_t j = 0; j < d_; ++j)
        std::memcpy(out.codes + j * kPageTokens + token, codes_ + j * kChunk, kChunk);
      std::memcpy(best_.s, fit_.s, n_groups_ * kChunk * sizeof(float));
      std::memcpy(best_.o, fit_.o, n_groups_ * kChunk * sizeof(float));
      return;
    }
    uint8_t better[kChunk];
    for (size_t v = 0; v < kVectors; ++v) {
      const V e = at(error_, 0, v), least = at(least_, 0, v);
      const auto fell = hn::Lt(e, least);
      put(least_, 0, v, hn::IfThenElse(fell, e, least));
      const auto bits = hn::VecFromMask(I(), hn::RebindMask(I(), fell));
      hn::StoreU(hn::DemoteTo(hn::Rebind<int8_t, F>(), bits), hn::Rebind<int8_t, F>(),
                 reinterpret_cast<int8_t*>(better + v * kLanes));
      for (size_t g = 0; g < n_groups_; ++g) {
        put(best_.s, g, v, hn::IfThenElse(fell, at(fit_.s, g, v), at(best_.s, g, v)));
        put(best_.o, g, v, hn::IfThenElse(fell, at(fit_.o, g, v), at(best_.o, g, v)));
      }
    }
    for (size_t j = 0; j < d_; ++j) {
      uint8_t* HWY_RESTRICT best = out.codes + j * kPageTokens + token;
      const uint8_t* HWY_RESTRICT now = codes_ + j * kChunk;
      for (size_t t = 0; t < kChunk; ++t)
        best[t] = static_cast<uint8_t>((now[t] & better[t]) | (best[t] & ~better[t]));
    }
  }

  void write_fit(const Columns& out, size_t token) const {
    for (size_t g = 0; g < n_groups_; ++g) {
      for (size_t v = 0; v < kVectors; ++v) {
        const size_t i = g * kPageTokens + token + v * kLanes;
        round_to_half(at(best_.s, g, v), &out.scale[i].bits);
        if (stored_) round_to_half(at(best_.o, g, v), &out.offset[i].bits);
      }
    }
    if (out.error) std::memcpy(out.error + token, least_, kChunk * sizeof(float));
  }

  const uint16_t* columns_;  // [d, 64] from the chunk's first token
  const FeedbackTables& tables_;
  const FeedbackSearch& search_;
  const size_t d_, group_, n_groups_;
  const float top_, half_top_, unit_step_;
  const bool stored_;
  Fit fit_, best_;
  HWY_ALIGN float mean_[kMaxGroups * kChunk], unit_[kMaxGroups * kChunk];
  HWY_ALIGN float inverse_[kMaxGroups * kChunk], bias_[kMaxGroups * kChunk];
  HWY_ALIGN float r_[kMaxHeadDim * kChunk], t_[kMaxHeadDim * kChunk];
  HWY_ALIGN float error_[kChunk], least_[kChunk];
  uint8_t codes_[kMaxHeadDim * kChunk];
};

void EncodeRows(const bf16* rows, size_t row_stride, const Options& options, const FeedbackTables& tables,
                const Columns& out) {
  HWY_ALIGN uint16_t columns[static_cast<size_t>(kMaxHeadDim) * kPageTokens];  // 64 KiB
  const size_t d = static_cast<size_t>(options.head_dim);
  transpose(reinterpret_cast<const uint16_t*>(rows), row_stride, d, columns);
  make_finite(columns, d * kPageTokens);
  for (size_t token = 0; token < kPageTokens; token += kChunk)
    ChunkCoder(columns + token, options, tables).run(out, token);
}

}  // namespace kv2::feedback::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv2::feedback {

HWY_EXPORT(EncodeRows);

void encode_rows(const bf16* rows, size_t row_stride, const Options& options, const FeedbackTables& tables,
                 const Columns& out) {
  check(options);
  HWY_DYNAMIC_DISPATCH(EncodeRows)(rows, row_stride, options, tables, out);
}

}  // namespace kv2::feedback
#endif  // HWY_ONCE
