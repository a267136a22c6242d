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

/// Vectors of a warp at a time: several where there are rows enough, as a matrix is then read less often.
constexpr int kManyRows = 16, kMany = 4;
constexpr int most_each(int head_dim) {
  return head_dim <= 128 ? kMany : 1;  // shared memory
}

/// N vectors of a warp from the product with W_qkv to their place: those of rows first_row + (i + v) /
/// per_row.
template <int D, int N>
struct HeadVectors {
  static constexpr int kChannels = D / 32;
  const HeadRows& p;
  const HeadRows::Side& side;
  const Kind kind;
  const int kv_head, per_row, first_row, n_vectors, lane;
  float (*mine)[D];

  __device__ int row(int i) const { return first_row + min(i, n_vectors - 1) / per_row; }
  __device__ int head(int i) const { return kv_head * per_row + min(i, n_vectors - 1) % per_row; }

  __device__ void load(int first) const {
    const int first_head = kind == kQ ? 0 : kind == kK ? p.n_heads : p.n_heads + p.n_kv_heads;
    float y[N][kChannels];
#pragma unroll
    for (int v = 0; v < N; v++) {
      const float* x =
          p.qkv + static_cast<size_t>(row(first + v)) * p.stride + (first_head + head(first + v)) * D;
#pragma unroll
      for (int c = 0; c < kChannels; c++) y[v][c] = x[lane + 32 * c];
    }
#pragma unroll
    for (int v = 0; v < N; v++) {
      if (side.norm) {
        float sum = 0;
#pragma unroll
        for (int c = 0; c < kChannels; c++) sum = fmaf(y[v][c], y[v][c], sum);
        const float factor = norm_factor(warp_sum(sum), D, p.epsilon);
#pragma unroll
        for (int c = 0; c < kChannels; c++) y[v][c] = y[v][c] * factor * side.norm[lane + 32 * c];
      }
#pragma unroll
      for (int c = 0; c < kChannels; c++) mine[v][lane + 32 * c] = y[v][c];
    }
    __syncwarp();
  }
  __device__ void rotate(int first) const {
    for (int c = lane; c < D / 2; c += 32) {
      float2 angle{};
#pragma unroll
      for (int v = 0; v < N; v++) {
        if (v == 0 || row(first + v) != row(first + v - 1))  // heads of a row have the same angles
          angle = p.angles[static_cast<size_t>(row(first + v)) * (D / 2) + c];
        rope_rotate(mine[v][p.adjacent ? 2 * c : c], mine[v][p.adjacent ? 2 * c + 1 : c + D / 2], angle);
      }
    }
    __syncwarp();
  }
  /// 32 channels of each in the stored basis.
  __device__ void product(const MatrixSlice<D>& slice, int first_channel, float (&result)[N]) const {
    if (!side.matrix) {
#pragma unroll
      for (int v = 0; v < N; v++) result[v] = mine[v][first_channel + lane];
      return;
    }
    if (side.mean) {
#pragma unroll
      for (int c = 0; c < kChannels; c++) {
        const float mean = side.mean[kv_head * D + lane + 32 * c];
#pragma unroll
        for (int v = 0; v < N; v++) mine[v][lane + 32 * c] -= mean;
      }
      __syncwarp();
    }
    slice.product(mine, lane, result);
#pragma unroll
    for (int v = 0; v < N; v++) result[v] += 0.0f;  // as transform.cu adds
  }
  __device__ void store(int i, int channel, float x) const {
    if (i >= n_vectors) return;
    if (kind == kQ) {
      p.q_out[(static_cast<size_t>(row(i)) * p.n_heads + head(i)) * D + channel] = x;
      return;
    }
    const AppendRow at = p.rows[row(i)];
    auto* page = reinterpret_cast<uint16_t*>(p.full.head(at.full_pages[at.pos / kPage], kv_head));
    const int token = static_cast<int>(at.pos % kPage);
    page[kind == kK ? full_k_at(D, token, channel) : kPage * D + full_v_at(D, token, channel)] =
        to_bf16_bits(x);
  }

  __device__ void go_through(const MatrixSlice<D>& slice, int first_channel) const {
    for (int first = static_cast<int>(threadIdx.x) / 32 * N; first < n_vectors; first += kWarps * N) {
      load(first);
      if (kind != kV) rotate(first);
      float result[N];
      product(slice, first_channel, result);
#pragma unroll
      for (int v = 0; v < N; v++) store(first + v, first_channel + lane, result[v]);
      __syncwarp();  // the vectors have been read
    }
  }
};

template <int D, int kVectors>
__global__ void __launch_bounds__(kThreads) heads_kernel(const HeadRows p) {
  __shared__ MatrixSlice<D> slice;
  __shared__ __align__(16) float vectors[kWarps][kVectors][D];
  // blocks of queries first, then those of keys and values, which have fewer vectors a row
  const int at_kv = static_cast<int>(blockIdx.x) - p.q_blocks;
  const Kind kind = at_kv < 0 ? kQ : at_kv < p.blocks ? kK : kV;
  const int first_channel = blockIdx.z * 32, kv_head = blockIdx.y;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const HeadRows::Side& side = kind == kQ ? p.q : kind == kK ? p.k : p.v;
  if (side.matrix)
    slice.load(side.matrix + static_cast<size_t>(kv_head) * D * D, first_channel, kind == kQ, kThreads);
  let_next_begin();
  wait_for_inputs();
  __syncthreads();

  if (kind == kQ) {
    const int per_row = p.n_heads / p.n_kv_heads, first_row = blockIdx.x * p.q_rows_each,
              n = min(p.q_rows_each, p.n_rows - first_row) * per_row;
    HeadVectors<D, kVectors>{p, side, kind, kv_head, per_row, first_row, n, lane, vectors[warp]}.go_through(
        slice, first_channel);
  } else {  // each of a row of its own
    constexpr int kRows = kVectors > 1 ? kVectors / 2 : 1;
    const int first_row = at_kv % p.blocks * p.rows_each, n = min(p.rows_each, p.n_rows - first_row);
    HeadVectors<D, kRows>{p, side, kind, kv_head, 1, first_row, n, lane, vectors[warp]}.go_through(
        slice, first_channel);
  }
}

__global__ void __launch_bounds__(kThreads)
    rope_angles_kernel(const AppendRow* rows, const float* inv_frequency, float2* angles, int n, int half) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < n) angles[i] = rope_angle(static_cast<double>(rows[i / half].pos), inv_frequency[i % half]);
}

/// transform.cu's, for few rows.
template <int D, int kVectors>
__global__ void __launch_bounds__(kThreads)
    transform_few_kernel(const TransformRows p, const LinearInputs rounded) {
  constexpr int kChannels = D / 32;
  __shared__ MatrixSlice<D> slice;
  __shared__ __align__(16) float vectors[kWarps][kVectors][D];
  const int first = blockIdx.z * 32, kv_head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  slice.load(p.matrix + static_cast<size_t>(kv_head) * D * D, first, p.transpose, kThreads);
  let_next_begin();
  wait_for_inputs();
  const int q_per_kv = p.n_heads / p.n_kv_heads, n_vectors = p.n_rows * q_per_kv;
  const int i = (static_cast<int>(blockIdx.x) * kWarps + warp) * kVectors;
  const auto row = [&](int v) { return min(i + v, n_vectors - 1) / q_per_kv; };
  const auto head = [&](int v) { return kv_head * q_per_kv + min(i + v, n_vectors - 1) % q_per_kv; };
  const auto at = [&](int v) { return (static_cast<size_t>(row(v)) * p.n_heads + head(v)) * D; };
#pragma unroll
  for (int v = 0; v < kVectors; v++)
#pragma unroll
    for (int c = 0; c < kChannels; c++) {
      const int channel = lane + 32 * c;
      vectors[warp][v][channel] = p.in[at(v) + channel] - (p.mean ? p.mean[kv_head * D + channel] : 0.0f);
    }
  __syncthreads();
  float result[kVectors];
  slice.product(vectors[warp], lane, result);
  const float added = p.add ? p.add[kv_head * D + first + lane] : 0.0f;
#pragma unroll
  for (int v = 0; v < kVectors; v++) {
    if (i + v >= n_vectors) break;
    const float x = result[v] + added;
    p.out[at(v) + first + lane] = x;
    store_input(rounded, row(v), head(v) * D + first + lane, x);
  }
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

void launch_rope_angles(const AppendRow* rows, const float* inv_frequency, float2* angles, int n_rows,
                        int half, cudaStream_t stream) {
  const int n = n_rows * half;
  rope_angles_kernel<<<(n + kThreads - 1) / kThreads, kThreads, 0, stream>>>(rows, inv_frequency, angles, n,
                                                                             half);
}

void launch_heads(HeadRows p, cudaStream_t stream) {
  with_head_dim(p.head_dim, [&](auto d) {
    const bool many = p.n_rows > kManyRows && most_each(d) > 1;
    p.rows_each = many ? kWarps * kMany / 2 : p.n_rows <= 8 ? 1 : p.n_rows <= kManyRows ? 2 : kWarps;
    // a warp has its vectors once
    const int q_rows = std::max(1, kWarps * (many ? kMany : 1) * p.n_kv_heads / p.n_heads);
    p.q_rows_each = many ? q_rows : std::min(p.rows_each, q_rows);
    p.blocks = (p.n_rows + p.rows_each - 1) / p.rows_each;
    p.q_blocks = (p.n_rows + p.q_rows_each - 1) / p.q_rows_each;
    const dim3 grid(p.q_blocks + 2 * p.blocks, p.n_kv_heads, d / 32);
    const auto kernel = many ? heads_kernel<d, most_each(d)> : heads_kernel<d, 1>;
    launch_overlapped(kernel, grid, kThreads, 0, stream, p);
  });
}

bool transform_few_fits(const TransformRows& p) {
  return p.n_rows <= 64 && p.in != p.out && heads_fit(p.n_rows, p.head_dim);
}

void launch_transform_few(const TransformRows& p, const LinearInputs& rounded, cudaStream_t stream) {
  with_head_dim(p.head_dim, [&](auto d) {
    const bool many = p.n_rows > kManyRows && most_each(d) > 1;
    const int n_vectors = p.n_rows * (p.n_heads / p.n_kv_heads), each = kWarps * (many ? kMany : 1);
    const dim3 grid((n_vectors + each - 1) / each, p.n_kv_heads, d / 32);
    const auto kernel = many ? transform_few_kernel<d, most_each(d)> : transform_few_kernel<d, 1>;
    launch_overlapped(kernel, grid, kThreads, 0, stream, p, rounded);
  });
}

}  // namespace kv2::cuda
