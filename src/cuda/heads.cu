// SPDX-License-Identifier: Apache-2.0
// From the product with W_qkv to what attention reads, for few rows: QK norms, RoPE, the method's basis, and
// the rows of K and V into their pages, in one launch. A block has 32 output channels of the queries, the key
// or the value of one KV head and some rows; every operation is the one of rows.cu, transform.cu and append,
// in the same order, so that the bits are those of a prompt.
#include <algorithm>
#include <type_traits>

#include "cuda/bf16_bits.cuh"
#include "cuda/fragment.h"
#include "cuda/kernels.h"
#include "cuda/linear_inputs.cuh"
#include "cuda/matrix_slice.cuh"
#include "cuda/norm.cuh"
#include "cuda/overlap.cuh"
#include "cuda/rope.cuh"

namespace kv2::cuda {
namespace {

constexpr int kPage = 64, kWarps = 8, kThreads = kWarps * 32;

enum Kind { kQ, kK, kV };

template <int D>
__global__ void __launch_bounds__(kThreads) heads_kernel(const HeadRows p) {
  constexpr int kEach = D / 32;
  __shared__ MatrixSlice<D> slice;
  __shared__ __align__(16) float vectors[kWarps][D];
  // blocks of queries first, then those of keys and values, which have fewer vectors a row
  const int n_q = (p.n_rows + p.q_rows_each - 1) / p.q_rows_each,
            n_kv = (p.n_rows + p.rows_each - 1) / p.rows_each, at_kv = static_cast<int>(blockIdx.x) - n_q;
  const int kind = at_kv < 0 ? kQ : at_kv < n_kv ? kK : kV, first = blockIdx.z * 32, kv_head = blockIdx.y;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const HeadRows::Side side = kind == kQ ? p.q : kind == kK ? p.k : p.v;
  if (side.matrix)
    slice.load(side.matrix + static_cast<size_t>(kv_head) * D * D, first, kind == kQ, kThreads);
  let_next_begin();
  wait_for_inputs();
  __syncthreads();

  const int q_per_kv = p.n_heads / p.n_kv_heads, per_row = kind == kQ ? q_per_kv : 1;
  const int rows_each = kind == kQ ? p.q_rows_each : p.rows_each;
  const int first_row = (kind == kQ ? blockIdx.x : at_kv % n_kv) * rows_each,
            n_vectors = min(rows_each, p.n_rows - first_row) * per_row;
  const int first_head = kind == kQ ? 0 : kind == kK ? p.n_heads : p.n_heads + p.n_kv_heads;
  float* mine = vectors[warp];
  for (int i = warp; i < n_vectors; i += kWarps) {
    const int row = first_row + i / per_row, head = kv_head * per_row + i % per_row;
    const AppendRow at = p.rows[row];
    const float* x = p.qkv + static_cast<size_t>(row) * p.stride + (first_head + head) * D;
    float y[kEach];
#pragma unroll
    for (int c = 0; c < kEach; c++) y[c] = x[lane + 32 * c];
    if (side.norm) {
      float sum = 0;
#pragma unroll
      for (int c = 0; c < kEach; c++) sum = fmaf(y[c], y[c], sum);
      const float factor = norm_factor(warp_sum(sum), D, p.epsilon);
#pragma unroll
      for (int c = 0; c < kEach; c++) y[c] = y[c] * factor * side.norm[lane + 32 * c];
    }
    __syncwarp();  // the vector before has been read
#pragma unroll
    for (int c = 0; c < kEach; c++) mine[lane + 32 * c] = y[c];
    __syncwarp();
    if (kind != kV) {
      for (int c = lane; c < D / 2; c += 32)
        rope_rotate(mine[p.adjacent ? 2 * c : c], mine[p.adjacent ? 2 * c + 1 : c + D / 2],
                    rope_angle(static_cast<double>(at.pos), p.inv_frequency[c]));
      __syncwarp();
    }
    float result;
    if (side.matrix) {
#pragma unroll
      for (int c = 0; c < kEach; c++)
        mine[lane + 32 * c] -= side.mean ? side.mean[kv_head * D + lane + 32 * c] : 0.0f;
      __syncwarp();
      result = slice.product(mine, lane) + 0.0f;
    } else {
      result = mine[first + lane];
    }
    const int channel = first + lane;
    if (kind == kQ) {
      p.q_out[(static_cast<size_t>(row) * p.n_heads + head) * D + channel] = result;
      continue;
    }
    auto* page = reinterpret_cast<uint16_t*>(p.full.head(at.full_pages[at.pos / kPage], kv_head));
    const int token = static_cast<int>(at.pos % kPage);
    page[kind == kK ? full_k_at(D, token, channel) : kPage * D + full_v_at(D, token, channel)] =
        to_bf16_bits(result);
  }
}

/// transform.cu's, for few rows.
template <int D>
__global__ void __launch_bounds__(kThreads)
    transform_few_kernel(const TransformRows p, const LinearInputs rounded) {
  constexpr int kEach = D / 32;
  __shared__ MatrixSlice<D> slice;
  __shared__ __align__(16) float vectors[kWarps][D];
  const int first = blockIdx.z * 32, kv_head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  slice.load(p.matrix + static_cast<size_t>(kv_head) * D * D, first, p.transpose, kThreads);
  let_next_begin();
  wait_for_inputs();
  const int q_per_kv = p.n_heads / p.n_kv_heads, i = blockIdx.x * kWarps + warp;
  const int row = i / q_per_kv, head = kv_head * q_per_kv + i % q_per_kv;
  const size_t at = (static_cast<size_t>(row) * p.n_heads + head) * D;
  if (row < p.n_rows)
#pragma unroll
    for (int c = 0; c < kEach; c++) {
      const int channel = lane + 32 * c;
      vectors[warp][channel] = p.in[at + channel] - (p.mean ? p.mean[kv_head * D + channel] : 0.0f);
    }
  __syncthreads();
  if (row >= p.n_rows) return;
  const float result =
      slice.product(vectors[warp], lane) + (p.add ? p.add[kv_head * D + first + lane] : 0.0f);
  p.out[at + first + lane] = result;
  store_input(rounded, row, head * D + first + lane, result);
}

template <class Launch>
bool with_head_dim(int head_dim, const Launch& launch) {
  switch (head_dim) {
    case 64:
      launch(std::integral_constant<int, 64>{});
      return true;
    case 96:
      launch(std::integral_constant<int, 96>{});
      return true;
    case 128:
      launch(std::integral_constant<int, 128>{});
      return true;
    case 192:
      launch(std::integral_constant<int, 192>{});
      return true;
    case 256:
      launch(std::integral_constant<int, 256>{});
      return true;
    default:
      return false;
  }
}

}  // namespace

bool heads_fit(int n_rows, int head_dim) {
  return n_rows <= 256 && with_head_dim(head_dim, [](auto) {});
}

void launch_heads(HeadRows p, cudaStream_t stream) {
  p.rows_each = p.n_rows <= 8 ? 1 : p.n_rows <= 16 ? 2 : kWarps;
  // a vector for each warp
  p.q_rows_each = std::min(p.rows_each, std::max(1, kWarps * p.n_kv_heads / p.n_heads));
  with_head_dim(p.head_dim, [&](auto d) {
    const int n_q = (p.n_rows + p.q_rows_each - 1) / p.q_rows_each,
              n_kv = (p.n_rows + p.rows_each - 1) / p.rows_each;
    const dim3 grid(n_q + 2 * n_kv, p.n_kv_heads, d / 32);
    launch_overlapped(heads_kernel<d>, grid, kThreads, 0, stream, p);
  });
}

bool transform_few_fits(const TransformRows& p) {
  return p.n_rows <= 64 && p.in != p.out && heads_fit(p.n_rows, p.head_dim);
}

void launch_transform_few(const TransformRows& p, const LinearInputs& rounded, cudaStream_t stream) {
  with_head_dim(p.head_dim, [&](auto d) {
    const int n_vectors = p.n_rows * (p.n_heads / p.n_kv_heads);
    const dim3 grid((n_vectors + kWarps - 1) / kWarps, p.n_kv_heads, d / 32);
    launch_overlapped(transform_few_kernel<d>, grid, kThreads, 0, stream, p, rounded);
  });
}

}  // namespace kv2::cuda
