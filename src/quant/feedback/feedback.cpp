// SPDX-License-Identifier: Apache-2.0
// The specification of `feedback`, scalar, in fp32 with one rounding per operation; fma where it says so. The
// steps are those of docs/page-format.md. It does not vectorise: feedback_simd.cpp does, with the same bits.
#include "quant/feedback/feedback.h"

#include <cmath>
#include <limits>

#include "base/check.h"
#include "quant/clip.h"

namespace kv2::feedback {
namespace {

constexpr int kMaxGroups = kMaxHeadDim / 4;

/// NaN counts as the lower bound. Both bounds are fp16 numbers.
float half_within(float x, float low, float high) {
  const float clamped = x > low ? (x < high ? x : high) : low;
  return to_float(to_fp16(clamped));
}
float half_scale(float x) {
  return half_within(x, 0x1p-24f, 65504.0f);
}
float half_offset(float x) {
  return half_within(x, -65504.0f, 65504.0f);
}

/// Scale and offset of every group; always fp16 numbers, the offset of a centred code excepted (exact).
struct Fit {
  float s[kMaxGroups], o[kMaxGroups];
};

class VectorCoder {
 public:
  VectorCoder(const bf16* x, const Options& options, const FeedbackTables& tables)
      : options_(options),
        tables_(tables),
        d_(options.head_dim),
        group_(options.group),
        half_top_(static_cast<float>(options.top()) / 2) {
    for (int i = 0; i < d_; ++i) y_[i] = to_float(finite(x[i]));
    for (int g = 0; g < options_.n_groups(); ++g) measure(g);
  }

  float run(uint8_t* codes, Fit& best) {
    float least = std::numeric_limits<float>::infinity();
    bool first = true;
    const auto keep_if_better = [&](const Fit& fit, float error) {
      if (!first && !(error < least)) return;
      if (error < least) least = error;
      first = false;
      best = fit;
      std::copy(codes_, codes_ + d_, codes);
    };
    for (int i = 0; i < options_.search.n_steps; ++i) {
      Fit fit = start(options_.search.steps[i]);
      keep_if_better(fit, code(fit));
      for (int k = 0; k < options_.search.refits; ++k) {
        refit(fit);
        keep_if_better(fit, code(fit));
      }
    }
    return least;
  }

 private:
  bool stored() const { return options_.offset == Offset::Stored; }

  /// Step 2: a group's mean (0 where no offset is stored) and the step of a Gaussian of its spread.
  void measure(int g) {
    const float n = static_cast<float>(group_);
    float sum = 0, square = 0;
    for (int i = g * group_; i < (g + 1) * group_; ++i) sum = sum + y_[i];
    mean_[g] = stored() ? sum / n : 0.0f;
    for (int i = g * group_; i < (g + 1) * group_; ++i) {
      const float e = y_[i] - mean_[g];
      square = std::fma(e, e, square);
    }
    unit_[g] = std::sqrt(square / n) * unit_step(options_.bits);
  }

  /// Step 3.
  Fit start(float step) const {
    Fit fit;
    for (int g = 0; g < options_.n_groups(); ++g) {
      fit.s[g] = half_scale(step * unit_[g]);
      fit.o[g] = stored() ? half_offset(std::fma(-half_top_, fit.s[g], mean_[g])) : centred(fit.s[g]);
    }
    return fit;
  }
  float centred(float s) const { return -half_top_ * s; }

  /// Step 4: codes_ and residuals r_; returns the error.
  float code(const Fit& fit) {
    const float top = static_cast<float>(options_.top());
    float error = 0;
    for (int j = 0; j < d_; ++j) {
      const float s = fit.s[j / group_], o = fit.o[j / group_];
      const float inverse = 1.0f / s, bias = std::fma(-o, inverse, 0.5f);
      float w = y_[j];
      for (int i = 0; i < j; ++i) w = std::fma(-r_[i], tables_.f[i * d_ + j], w);
      const float level = std::fma(w, inverse, bias);
      const float c = std::floor(level > 0 ? (level < top ? level : top) : 0.0f);  // NaN: code 0
      r_[j] = std::fma(-s, c, w - o);
      error = std::fma(tables_.weight[j] * r_[j], r_[j], error);
      codes_[j] = static_cast<uint8_t>(c);
    }
    return error;
  }

  /// Step 5: one sweep of least squares over the groups, given codes_ and their residuals.
  void refit(Fit& fit) {
    for (int g = 0; g < options_.n_groups(); ++g) {
      sweep_codes(g);
      const float s = fit.s[g], o = fit.o[g];
      stored() ? refit_pair(g, fit) : refit_scale(g, fit);
      if (g + 1 == options_.n_groups()) break;  // nobody reads the residuals any more
      const float* ones = tables_.ones + static_cast<size_t>(g) * d_;
      for (int j = g * group_; j < d_; ++j) {
        r_[j] = std::fma(s - fit.s[g], t_[j], r_[j]);
        if (stored()) r_[j] = std::fma(o - fit.o[g], ones[j], r_[j]);
      }
    }
  }

  /// t_ = the group's codes (less their centre where no offset is stored), swept; zero before the group.
  void sweep_codes(int g) {
    const float centre = stored() ? 0.0f : half_top_;
    for (int j = g * group_; j < d_; ++j) {
      float w = j < (g + 1) * group_ ? static_cast<float>(codes_[j]) - centre : 0.0f;
      for (int i = g * group_; i < j; ++i) w = std::fma(-t_[i], tables_.f[i * d_ + j], w);
      t_[j] = w;
    }
  }

  void refit_pair(int g, Fit& fit) const {
    const float* ones = tables_.ones + static_cast<size_t>(g) * d_;
    float tt = 0, t1 = 0, tr = 0, one1 = 0, one_r = 0;
    for (int j = g * group_; j < d_; ++j) {
      const float wt = tables_.weight[j] * t_[j], w1 = tables_.weight[j] * ones[j];
      tt = std::fma(wt, t_[j], tt);
      t1 = std::fma(wt, ones[j], t1);
      tr = std::fma(wt, r_[j], tr);
      one1 = std::fma(w1, ones[j], one1);
      one_r = std::fma(w1, r_[j], one_r);
    }
    const float det = std::fma(tt, one1, -(t1 * t1));
    const float s = fit.s[g] + std::fma(tr, one1, -(one_r * t1)) / det;
    const float o = fit.o[g] + std::fma(one_r, tt, -(tr * t1)) / det;
    if (!(det > 0) || !(s > 0) || !(s < kHuge) || !(std::fabs(o) < kHuge)) return;
    fit.s[g] = half_scale(s);
    fit.o[g] = half_offset(o);
  }

  void refit_scale(int g, Fit& fit) const {
    float tt = 0, tr = 0;
    for (int j = g * group_; j < d_; ++j) {
      const float wt = tables_.weight[j] * t_[j];
      tt = std::fma(wt, t_[j], tt);
      tr = std::fma(wt, r_[j], tr);
    }
    const float s = fit.s[g] + tr / tt;
    if (!(tt > 0) || !(s > 0) || !(s < kHuge)) return;
    fit.s[g] = half_scale(s);
    fit.o[g] = centred(fit.s[g]);
  }

  static constexpr float kHuge = 0x1p40f;

  const Options& options_;
  const FeedbackTables& tables_;
  const int d_, group_;
  const float half_top_;
  float y_[kMaxHeadDim], r_[kMaxHeadDim], t_[kMaxHeadDim];
  uint8_t codes_[kMaxHeadDim];
  float mean_[kMaxGroups], unit_[kMaxGroups];
};

}  // namespace

Options options_of(int head_dim, const Coder& coder, int bits, Offset offset) {
  KV2_CHECK(coder.kind == CoderKind::Feedback, "coder kind {}", static_cast<int>(coder.kind));
  return {.head_dim = head_dim, .group = coder.group, .bits = bits, .offset = offset, .search = coder.search};
}

void check(const Options& o) {
  KV2_CHECK(o.head_dim > 0 && o.head_dim <= kMaxHeadDim, "head_dim {}", o.head_dim);
  KV2_CHECK(o.group > 0 && o.group % 4 == 0 && o.head_dim % o.group == 0, "group {} of head_dim {}", o.group,
            o.head_dim);
  KV2_CHECK(o.bits >= 1 && o.bits <= kMaxBits, "{} bits", o.bits);
  KV2_CHECK(o.offset != Offset::Symmetric, "feedback has no symmetric codes");
  KV2_CHECK(o.search.n_steps >= 1 && o.search.n_steps <= FeedbackSearch::kMaxSteps, "{} steps",
            o.search.n_steps);
  KV2_CHECK(o.search.refits >= 0, "{} refits", o.search.refits);
}

float encode_vector(const bf16* x, const Options& options, const FeedbackTables& tables, uint8_t* codes,
                    fp16* scale, fp16* offset) {
  check(options);
  Fit fit;
  const float error = VectorCoder(x, options, tables).run(codes, fit);
  for (int g = 0; g < options.n_groups(); ++g) {
    scale[g] = to_fp16(fit.s[g]);
    if (options.offset == Offset::Stored) offset[g] = to_fp16(fit.o[g]);
  }
  return error;
}

void encode_rows_reference(const bf16* rows, size_t row_stride, const Options& options,
                           const FeedbackTables& tables, const Columns& out) {
  uint8_t codes[kMaxHeadDim];
  fp16 scale[kMaxGroups], offset[kMaxGroups];
  for (size_t token = 0; token < kPageTokens; ++token) {
    const float error = encode_vector(rows + token * row_stride, options, tables, codes, scale, offset);
    for (int i = 0; i < options.head_dim; ++i) out.codes[i * kPageTokens + token] = codes[i];
    for (int g = 0; g < options.n_groups(); ++g) {
      out.scale[g * kPageTokens + token] = scale[g];
      if (options.offset == Offset::Stored) out.offset[g * kPageTokens + token] = offset[g];
    }
    if (out.error) out.error[token] = error;
  }
}

}  // namespace kv2::feedback
