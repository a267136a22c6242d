// SPDX-License-Identifier: Apache-2.0
// Coder `feedback` for head dims 64, 96 and 128 in one group: the specification of
// quant/feedback/feedback.cpp, bit for bit, as feedback.cu, which serves every other shape. A block codes K
// or V of one head of four pages, 256 vectors, a thread two of them, so that what it reads of the factor
// serves twice. The factor's upper triangle lies in shared memory in columns of 16 channels; a vector has one
// column of floats there, which holds residuals after a coding sweep and the swept codes, in their place,
// during a refit. Compiled with -fmad=false.
#include <cuda_fp16.h>

#include "cuda/feedback.cuh"
#include "cuda/fragment.h"
#include "cuda/kernels.h"

namespace kv2::cuda {
namespace {

using namespace feedback;

constexpr int kThreads = 128, kEach = 2, kVectors = kThreads * kEach, kPages = kVectors / kPage;
constexpr int kBlock = 16;  // channels of a sweep that are in registers at once

template <int D>
struct Shared {
  static constexpr int kBlocks = D / kBlock;
  float f[kBlock * kBlock * kBlocks * (kBlocks + 1) / 2];  // per block of columns j0: [j0 + 16 rows][16]
  float weight[D], ones[D];
  float column[D][kVectors];
  uint32_t codes[2][kBlocks][kVectors];  // 16 codes to a word

  __device__ static constexpr int first_row(int block) { return kBlock * block * (block + 1) / 2; }
};

template <int D>
class VectorCoder {
 public:
  __device__ VectorCoder(Shared<D>& shared, const FeedbackCoder& coder, const uint16_t* const (&rows)[kEach],
                         const int (&tokens)[kEach])
      : m_(shared), coder_(coder) {
#pragma unroll
    for (int v = 0; v < kEach; v++) {
      rows_[v] = rows[v];
      token_[v] = tokens[v];
      measure(v);
    }
  }

  /// Leaves scale and offset in s and o, and which buffer has the codes in `buffer`.
  __device__ void run(float (&s)[kEach], float (&o)[kEach], int (&buffer)[kEach]) {
    float least[kEach], fit_s[kEach], fit_o[kEach], error[kEach];
#pragma unroll
    for (int v = 0; v < kEach; v++) least[v] = INFINITY, buffer[v] = 1;
    bool first = true;
    const auto keep_if_better = [&] {
#pragma unroll
      for (int v = 0; v < kEach; v++) {
        if (!first && !(error[v] < least[v])) continue;
        if (error[v] < least[v]) least[v] = error[v];
        s[v] = fit_s[v], o[v] = fit_o[v];
        buffer[v] = 1 - buffer[v];
      }
      first = false;
    };
    for (int i = 0; i < coder_.n_steps; i++) {
#pragma unroll
      for (int v = 0; v < kEach; v++) {
        fit_s[v] = half_scale(__fmul_rn(coder_.steps[i], unit_[v]));
        fit_o[v] = half_offset(__fmaf_rn(-kHalfTop, fit_s[v], mean_[v]));
      }
      code(fit_s, fit_o, buffer, error);
      keep_if_better();
      for (int k = 0; k < coder_.refits; k++) {
        refit(fit_s, fit_o);
        code(fit_s, fit_o, buffer, error);
        keep_if_better();
      }
    }
  }

 private:
  __device__ float y(int v, int j) const {
    const int at = coder_.is_v ? full_v_at(D, token_[v], j) : full_k_at(D, token_[v], j);
    return __uint_as_float(static_cast<uint32_t>(finite_bits(__ldg(rows_[v] + at))) << 16);
  }
  __device__ float& column(int v, int j) const {
    return m_.column[j][threadIdx.x + v * kThreads];
  }
  __device__ uint32_t& codes(int buffer, int block, int v) const {
    return m_.codes[buffer][block][threadIdx.x + v * kThreads];
  }

  __device__ void measure(int v) {
    constexpr float n = static_cast<float>(D);
    float sum = 0, square = 0;
    for (int i = 0; i < D; i++) sum = __fadd_rn(sum, y(v, i));
    mean_[v] = __fdiv_rn(sum, n);
    for (int i = 0; i < D; i++) {
      const float e = __fsub_rn(y(v, i), mean_[v]);
      square = __fmaf_rn(e, e, square);
    }
    unit_[v] = __fmul_rn(__fsqrt_rn(__fdiv_rn(square, n)), kUnitStep);
  }

  /// w_j = begin − Σ_{i < j} out_i·F_ij in order of i, out_j = finish(v, j, w_j); outs replace the column.
  template <class Begin, class Finish, class End>
  __device__ __forceinline__ void sweep(const Begin& begin, const Finish& finish, const End& end) const {
#pragma unroll 1
    for (int block = 0; block < Shared<D>::kBlocks; block++) {
      const int j0 = block * kBlock;
      const float4* f = reinterpret_cast<const float4*>(m_.f + Shared<D>::first_row(block) * kBlock);
      float w[kEach][kBlock];
      begin(block, w);
#pragma unroll 2
      for (int i = 0; i < j0; i++) {
        float x[kEach];
#pragma unroll
        for (int v = 0; v < kEach; v++) x[v] = -column(v, i);
#pragma unroll
        for (int k = 0; k < kBlock / 4; k++) {
          const float4 a = f[i * (kBlock / 4) + k];
#pragma unroll
          for (int v = 0; v < kEach; v++) {
            w[v][4 * k] = __fmaf_rn(x[v], a.x, w[v][4 * k]);
            w[v][4 * k + 1] = __fmaf_rn(x[v], a.y, w[v][4 * k + 1]);
            w[v][4 * k + 2] = __fmaf_rn(x[v], a.z, w[v][4 * k + 2]);
            w[v][4 * k + 3] = __fmaf_rn(x[v], a.w, w[v][4 * k + 3]);
          }
        }
      }
      const float* own = m_.f + (Shared<D>::first_row(block) + j0) * kBlock;
#pragma unroll
      for (int k = 0; k < kBlock; k++) {
        float out[kEach];
#pragma unroll
        for (int v = 0; v < kEach; v++) out[v] = finish(v, j0 + k, k, w[v][k]);
#pragma unroll
        for (int l = k + 1; l < kBlock; l++)
#pragma unroll
          for (int v = 0; v < kEach; v++) w[v][l] = __fmaf_rn(-out[v], own[k * kBlock + l], w[v][l]);
      }
      end(block);
    }
  }

  /// Codes go to the buffer that does not hold the best ones.
  __device__ __forceinline__ void code(const float (&s)[kEach], const float (&o)[kEach],
                                       const int (&best)[kEach], float (&error)[kEach]) {
    float inverse[kEach], bias[kEach];
    uint32_t word[kEach];
#pragma unroll
    for (int v = 0; v < kEach; v++) {
      inverse[v] = __fdiv_rn(1.0f, s[v]);
      bias[v] = __fmaf_rn(-o[v], inverse[v], 0.5f);
      error[v] = 0, word[v] = 0;
      last_[v] = 1 - best[v];
    }
    sweep(
        [&](int block, float(&w)[kEach][kBlock]) {
#pragma unroll
          for (int v = 0; v < kEach; v++)
#pragma unroll
            for (int k = 0; k < kBlock; k++) w[v][k] = y(v, block * kBlock + k);
        },
        [&](int v, int j, int k, float w) {
          const float level = __fmaf_rn(w, inverse[v], bias[v]);
          const float c = floorf(level > 0 ? (level < kTop ? level : kTop) : 0.0f);
          const float rest = __fmaf_rn(-s[v], c, __fsub_rn(w, o[v]));
          error[v] = __fmaf_rn(__fmul_rn(m_.weight[j], rest), rest, error[v]);
          word[v] |= static_cast<uint32_t>(c) << (2 * k);
          column(v, j) = rest;
          return rest;
        },
        [&](int block) {
#pragma unroll
          for (int v = 0; v < kEach; v++) codes(last_[v], block, v) = word[v], word[v] = 0;
        });
  }

  /// Least squares over scale and offset, given the codes of the last sweep and their residuals.
  __device__ __forceinline__ void refit(float (&s)[kEach], float (&o)[kEach]) {
    float tt[kEach] = {}, t1[kEach] = {}, tr[kEach] = {}, one_r[kEach] = {}, one1 = 0;
    sweep(
        [&](int block, float(&w)[kEach][kBlock]) {
#pragma unroll
          for (int v = 0; v < kEach; v++) {
            const uint32_t word = codes(last_[v], block, v);
#pragma unroll
            for (int k = 0; k < kBlock; k++) w[v][k] = static_cast<float>(word >> (2 * k) & 3);
          }
        },
        [&](int v, int j, int k, float t) {
          const float r = column(v, j), weight = m_.weight[j], one = m_.ones[j];
          const float wt = __fmul_rn(weight, t), w1 = __fmul_rn(weight, one);
          tt[v] = __fmaf_rn(wt, t, tt[v]);
          t1[v] = __fmaf_rn(wt, one, t1[v]);
          tr[v] = __fmaf_rn(wt, r, tr[v]);
          if (v == 0) one1 = __fmaf_rn(w1, one, one1);
          one_r[v] = __fmaf_rn(w1, r, one_r[v]);
          column(v, j) = t;
          return t;
        },
        [](int) {});
#pragma unroll
    for (int v = 0; v < kEach; v++) {
      const float det = __fmaf_rn(tt[v], one1, -__fmul_rn(t1[v], t1[v]));
      const float ns = __fadd_rn(s[v], __fdiv_rn(__fmaf_rn(tr[v], one1, -__fmul_rn(one_r[v], t1[v])), det));
      const float no = __fadd_rn(o[v], __fdiv_rn(__fmaf_rn(one_r[v], tt[v], -__fmul_rn(tr[v], t1[v])), det));
      if (!(det > 0) || !(ns > 0) || !(ns < kHuge) || !(fabsf(no) < kHuge)) continue;
      s[v] = half_scale(ns);
      o[v] = half_offset(no);
    }
  }

  Shared<D>& m_;
  const FeedbackCoder& coder_;
  const uint16_t* rows_[kEach];
  int token_[kEach], last_[kEach];
  float mean_[kEach], unit_[kEach];
};

template <int D>
__global__ void __launch_bounds__(kThreads, 1)
    demote_feedback_group_kernel(Pool full, Pool packed, const DemotePage* pages, int n_pages,
                                 FeedbackCoder coder) {
  extern __shared__ __align__(16) char raw[];
  auto& m = *reinterpret_cast<Shared<D>*>(raw);
  const int head = blockIdx.y, first_page = blockIdx.x * kPages;
  const size_t h = head;
  const float* f = coder.f + h * D * D;
  for (int block = 0; block < Shared<D>::kBlocks; block++)
    for (int i = threadIdx.x; i < (block + 1) * kBlock * kBlock; i += kThreads)
      m.f[Shared<D>::first_row(block) * kBlock + i] = f[i / kBlock * D + block * kBlock + i % kBlock];
  for (int i = threadIdx.x; i < D; i += kThreads) {
    m.weight[i] = coder.weight[h * D + i];
    m.ones[i] = coder.ones[h * D + i];
  }
  const uint16_t* rows[kEach];
  int tokens[kEach];
#pragma unroll
  for (int v = 0; v < kEach; v++) {
    const int vector = threadIdx.x + v * kThreads, page = min(first_page + vector / kPage, n_pages - 1);
    rows[v] =
        reinterpret_cast<const uint16_t*>(full.head(pages[page].full, head)) + (coder.is_v ? kPage * D : 0);
    tokens[v] = vector % kPage;
  }
  __syncthreads();
  VectorCoder<D> vectors(m, coder, rows, tokens);
  float s[kEach], o[kEach];
  int buffer[kEach];
  vectors.run(s, o, buffer);

  constexpr int kCodesBytes = kPage * D / 4, kParamsBytes = kPage * 4;
#pragma unroll
  for (int v = 0; v < kEach; v++) {
    const int vector = threadIdx.x + v * kThreads, page = first_page + vector / kPage;
    if (buffer[v] == 1)
      for (int i = 0; i < Shared<D>::kBlocks; i++) m.codes[0][i][vector] = m.codes[1][i][vector];
    if (page >= n_pages) continue;
    std::byte* to = packed.head(pages[page].packed, head);
    reinterpret_cast<__half2*>(to + 2 * kCodesBytes + (coder.is_v ? kParamsBytes : 0))[tokens[v]] =
        __floats2half2_rn(s[v], o[v]);  // exact: both are halves
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kPages * kCodesBytes / 4; i += kThreads) {
    const int at = i / (kCodesBytes / 4), word = i % (kCodesBytes / 4), page = first_page + at;
    if (page >= n_pages) break;
    uint32_t out = 0;
#pragma unroll
    for (int field = 0; field < 4; field++)
#pragma unroll
      for (int byte = 0; byte < 4; byte++) {
        const CodeOf of = coder.is_v ? packed_v_of(D, word, field, byte) : packed_k_of(D, word, field, byte);
        const uint32_t code =
            m.codes[0][of.channel / kBlock][at * kPage + of.token] >> (2 * (of.channel % kBlock));
        out |= (code & 3) << (8 * byte + 2 * field);
      }
    reinterpret_cast<uint32_t*>(packed.head(pages[page].packed, head) +
                                (coder.is_v ? kCodesBytes : 0))[word] = out;
  }
}

template <int D>
void launch(Pool full, Pool packed, const DemotePage* pages, int n_pages, int n_kv_heads,
            const FeedbackCoder& coder, cudaStream_t stream) {
  cudaFuncSetAttribute(demote_feedback_group_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(sizeof(Shared<D>)));
  demote_feedback_group_kernel<D>
      <<<dim3((n_pages + kPages - 1) / kPages, n_kv_heads), kThreads, sizeof(Shared<D>), stream>>>(
          full, packed, pages, n_pages, coder);
}

}  // namespace

bool launch_demote_feedback_group(Pool full, Pool packed, const DemotePage* pages, int n_pages,
                                  int n_kv_heads, int head_dim, int group, const FeedbackCoder& coder,
                                  cudaStream_t stream) {
  if (group != head_dim) return false;
  switch (head_dim) {
    case 64:
      launch<64>(full, packed, pages, n_pages, n_kv_heads, coder, stream);
      return true;
    case 96:
      launch<96>(full, packed, pages, n_pages, n_kv_heads, coder, stream);
      return true;
    case 128:
      launch<128>(full, packed, pages, n_pages, n_kv_heads, coder, stream);
      return true;
    default:
      return false;
  }
}

}  // namespace kv2::cuda
