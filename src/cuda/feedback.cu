// SPDX-License-Identifier: Apache-2.0
// Coder `feedback`: the specification of quant/feedback/feedback.cpp with 2 bits and a stored offset, bit for
// bit; a thread to a vector, a block to K or V of one head page. Compiled with -fmad=false: fma only where it
// is written. A sweep over channels takes eight of them at a time, each still summed in the order of the
// channels before it.
#include <cuda_fp16.h>

#include "cuda/feedback.cuh"
#include "cuda/fragment.h"
#include "cuda/kernels.h"

namespace kv2::cuda {
namespace {

using namespace feedback;

constexpr int kBlock = 8, kMaxGroups = 32;

struct Fit {
  float s[kMaxGroups], o[kMaxGroups];
};

/// Shared memory of a block, token innermost.
struct Columns {
  float *r, *t;    // [d][64]
  uint16_t* y;     // [d][64] bf16
  uint8_t* codes;  // [2][d][64]
};

class VectorCoder {
 public:
  __device__ VectorCoder(const Columns& columns, const FeedbackCoder& coder, const float* f,
                         const float* weight, const float* ones, int d, int group)
      : m_(columns), coder_(coder), f_(f), weight_(weight), ones_(ones), d_(d), group_(group) {}

  /// Leaves the best codes in columns.codes[best buffer].
  __device__ int run(Fit& best) {
    float least = INFINITY;
    bool first = true;
    int best_buffer = 0;
    const auto keep_if_better = [&](const Fit& fit, float error) {
      if (!first && !(error < least)) return;
      if (error < least) least = error;
      first = false;
      for (int g = 0; g < d_ / group_; g++) best.s[g] = fit.s[g], best.o[g] = fit.o[g];
      best_buffer = buffer_;
    };
    for (int i = 0; i < coder_.n_steps; i++) {
      Fit fit;
      for (int g = 0; g < d_ / group_; g++) start(g, coder_.steps[i], fit);
      buffer_ = first ? 0 : 1 - best_buffer;
      keep_if_better(fit, code(fit));
      for (int k = 0; k < coder_.refits; k++) {
        refit(fit);  // reads the codes of the last try, wherever they are
        buffer_ = 1 - best_buffer;
        keep_if_better(fit, code(fit));
      }
    }
    return best_buffer;
  }

 private:
  __device__ float y(int j) const {
    return __uint_as_float(static_cast<uint32_t>(m_.y[j * kPage + threadIdx.x]) << 16);
  }
  __device__ float& r(int j) const { return m_.r[j * kPage + threadIdx.x]; }
  __device__ float& t(int j) const { return m_.t[j * kPage + threadIdx.x]; }
  __device__ uint8_t& code_at(int j) const { return m_.codes[(buffer_ * d_ + j) * kPage + threadIdx.x]; }

  __device__ void start(int g, float step, Fit& fit) const {
    const float n = static_cast<float>(group_);
    float sum = 0, square = 0;
    for (int i = g * group_; i < (g + 1) * group_; i++) sum = __fadd_rn(sum, y(i));
    const float mean = __fdiv_rn(sum, n);
    for (int i = g * group_; i < (g + 1) * group_; i++) {
      const float e = __fsub_rn(y(i), mean);
      square = __fmaf_rn(e, e, square);
    }
    const float unit = __fmul_rn(__fsqrt_rn(__fdiv_rn(square, n)), kUnitStep);
    fit.s[g] = half_scale(__fmul_rn(step, unit));
    fit.o[g] = half_offset(__fmaf_rn(-kHalfTop, fit.s[g], mean));
  }

  /// out_j = finish(j, begin(j) − Σ_{first <= i < j} out_i·F_ij) for j from `first` on; out goes to `column`.
  template <class Begin, class Finish>
  __device__ void sweep(int first, float* column, const Begin& begin, const Finish& finish) const {
    for (int j0 = first; j0 < d_; j0 += kBlock) {
      float w[kBlock];
#pragma unroll
      for (int k = 0; k < kBlock; k++) w[k] = begin(j0 + k);
#pragma unroll 4
      for (int i = first; i < j0; i++) {
        const float x = -column[i * kPage + threadIdx.x];
        const float4* f = reinterpret_cast<const float4*>(f_ + i * d_ + j0);
        const float4 a = __ldg(f), b = __ldg(f + 1);
        w[0] = __fmaf_rn(x, a.x, w[0]), w[1] = __fmaf_rn(x, a.y, w[1]);
        w[2] = __fmaf_rn(x, a.z, w[2]), w[3] = __fmaf_rn(x, a.w, w[3]);
        w[4] = __fmaf_rn(x, b.x, w[4]), w[5] = __fmaf_rn(x, b.y, w[5]);
        w[6] = __fmaf_rn(x, b.z, w[6]), w[7] = __fmaf_rn(x, b.w, w[7]);
      }
#pragma unroll
      for (int k = 0; k < kBlock; k++) {
        const float out = finish(j0 + k, w[k]);
        column[(j0 + k) * kPage + threadIdx.x] = out;
#pragma unroll
        for (int l = k + 1; l < kBlock; l++) w[l] = __fmaf_rn(-out, __ldg(f_ + (j0 + k) * d_ + j0 + l), w[l]);
      }
    }
  }

  __device__ float code(const Fit& fit) {
    float error = 0, s = 0, o = 0, inverse = 0, bias = 0;
    sweep(
        0, m_.r, [&](int j) { return y(j); },
        [&](int j, float w) {
          if (j % group_ == 0) {
            s = fit.s[j / group_];
            o = fit.o[j / group_];
            inverse = __fdiv_rn(1.0f, s);
            bias = __fmaf_rn(-o, inverse, 0.5f);
          }
          const float level = __fmaf_rn(w, inverse, bias);
          const float c = floorf(level > 0 ? (level < kTop ? level : kTop) : 0.0f);
          const float rest = __fmaf_rn(-s, c, __fsub_rn(w, o));
          error = __fmaf_rn(__fmul_rn(__ldg(weight_ + j), rest), rest, error);
          code_at(j) = static_cast<uint8_t>(c);
          return rest;
        });
    return error;
  }

  __device__ void refit(Fit& fit) {
    const int n_groups = d_ / group_;
    for (int g = 0; g < n_groups; g++) {
      const int begin = g * group_, end = begin + group_;
      sweep(
          begin, m_.t, [&](int j) { return j < end ? static_cast<float>(code_at(j)) : 0.0f; },
          [](int, float w) { return w; });
      const float s = fit.s[g], o = fit.o[g];
      refit_pair(g, fit);
      if (g + 1 == n_groups) break;
      const float* ones = ones_ + g * d_;
      for (int j = begin; j < d_; j++) {
        const float x = __fmaf_rn(__fsub_rn(s, fit.s[g]), t(j), r(j));
        r(j) = __fmaf_rn(__fsub_rn(o, fit.o[g]), __ldg(ones + j), x);
      }
    }
  }

  __device__ void refit_pair(int g, Fit& fit) const {
    const float* ones = ones_ + g * d_;
    float tt = 0, t1 = 0, tr = 0, one1 = 0, one_r = 0;
    for (int j = g * group_; j < d_; j++) {
      const float weight = __ldg(weight_ + j), one = __ldg(ones + j), tj = t(j), rj = r(j);
      const float wt = __fmul_rn(weight, tj), w1 = __fmul_rn(weight, one);
      tt = __fmaf_rn(wt, tj, tt);
      t1 = __fmaf_rn(wt, one, t1);
      tr = __fmaf_rn(wt, rj, tr);
      one1 = __fmaf_rn(w1, one, one1);
      one_r = __fmaf_rn(w1, rj, one_r);
    }
    const float det = __fmaf_rn(tt, one1, -__fmul_rn(t1, t1));
    const float s = __fadd_rn(fit.s[g], __fdiv_rn(__fmaf_rn(tr, one1, -__fmul_rn(one_r, t1)), det));
    const float o = __fadd_rn(fit.o[g], __fdiv_rn(__fmaf_rn(one_r, tt, -__fmul_rn(tr, t1)), det));
    if (!(det > 0) || !(s > 0) || !(s < kHuge) || !(fabsf(o) < kHuge)) return;
    fit.s[g] = half_scale(s);
    fit.o[g] = half_offset(o);
  }

  const Columns& m_;
  const FeedbackCoder& coder_;
  const float *f_, *weight_, *ones_;
  const int d_, group_;
  int buffer_ = 0;
};

__global__ void __launch_bounds__(kPage)
    demote_feedback_kernel(Pool full, Pool packed, const DemotePage* pages, int d, int group,
                           FeedbackCoder coder) {
  extern __shared__ __align__(16) char shared[];
  const int head = blockIdx.y, n_groups = d / group, token = threadIdx.x;
  Columns m;
  m.r = reinterpret_cast<float*>(shared);
  m.t = m.r + d * kPage;
  m.y = reinterpret_cast<uint16_t*>(m.t + d * kPage);
  m.codes = reinterpret_cast<uint8_t*>(m.y + d * kPage);
  uint8_t* best_codes = m.codes;  // [d][64] once every thread has chosen

  const DemotePage page = pages[blockIdx.x];
  const auto* from =
      reinterpret_cast<const uint16_t*>(full.head(page.full, head)) + (coder.is_v ? kPage * d : 0);
  for (int i = threadIdx.x; i < kPage * d; i += kPage) {
    const int row = i / d, c = i % d;
    m.y[c * kPage + row] = finite_bits(from[coder.is_v ? full_v_at(d, row, c) : full_k_at(d, row, c)]);
  }
  __syncthreads();

  const size_t h = head;
  VectorCoder vector(m, coder, coder.f + h * d * d, coder.weight + h * d, coder.ones + h * n_groups * d, d,
                     group);
  Fit best;
  const int buffer = vector.run(best);
  if (buffer == 1)
    for (int j = 0; j < d; j++) best_codes[j * kPage + token] = m.codes[(d + j) * kPage + token];
  std::byte* to = packed.head(page.packed, head);
  const int codes_bytes = kPage * d / 4, params_bytes = kPage * n_groups * 4;
  auto* pairs = reinterpret_cast<__half2*>(to + 2 * codes_bytes + (coder.is_v ? params_bytes : 0));
  for (int g = 0; g < n_groups; g++)
    pairs[token * n_groups + g] = __floats2half2_rn(best.s[g], best.o[g]);  // exact: both are halves
  __syncthreads();

  auto* words = reinterpret_cast<uint32_t*>(to + (coder.is_v ? codes_bytes : 0));
  for (int word = threadIdx.x; word < codes_bytes / 4; word += kPage) {
    uint32_t out = 0;
    if (fragments_packed(d, group)) {
#pragma unroll
      for (int f = 0; f < 4; f++)
#pragma unroll
        for (int byte = 0; byte < 4; byte++) {
          const CodeOf of = coder.is_v ? packed_v_of(d, word, f, byte) : packed_k_of(d, word, f, byte);
          out |= static_cast<uint32_t>(best_codes[of.channel * kPage + of.token]) << (8 * byte + 2 * f);
        }
    } else {
      const int at = word / (d / 16), first = word % (d / 16) * 16;
      for (int c = 0; c < 16; c++)
        out |= static_cast<uint32_t>(best_codes[(first + c) * kPage + at]) << (2 * c);
    }
    words[word] = out;
  }
}

}  // namespace

void launch_demote_feedback(Pool full, Pool packed, const DemotePage* pages, int n_pages, int n_kv_heads,
                            int head_dim, int group, const FeedbackCoder& coder, cudaStream_t stream) {
  if (launch_demote_feedback_group(full, packed, pages, n_pages, n_kv_heads, head_dim, group, coder, stream))
    return;
  const int shared = kPage * head_dim * (4 + 4 + 2 + 2);
  cudaFuncSetAttribute(demote_feedback_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  demote_feedback_kernel<<<dim3(n_pages, n_kv_heads), kPage, shared, stream>>>(full, packed, pages, head_dim,
                                                                               group, coder);
}

}  // namespace kv2::cuda
