// SPDX-License-Identifier: Apache-2.0
// out = (x - mean)·matrix + add, per head: a block takes kVectors vectors that share a KV head's matrix,
// which comes through shared memory in pieces. A thread has one output channel of four vectors, or several
// such. f32, sums in index order, so a vector's bits do not depend on what is beside it.
#include "cuda/kernels.h"

namespace kv2::cuda {
namespace {

constexpr int kVectors = 8, kThreads = 256, kEach = 4;  // vectors of a thread
/// Rows of the matrix at a time: what leaves shared memory below 48 KiB.
__host__ __device__ constexpr int rows_of_piece(int d) {
  const int rows = (d <= 256 ? 8192 : 6144) / d / 4 * 4;
  return rows < d ? rows : d;
}
constexpr int kMaxItems = 512 * (kVectors / kEach) / kThreads;

__global__ void __launch_bounds__(kThreads)
    transform_kernel(const float* in, float* out, const float* matrix, const float* mean, const float* add,
                     int n_rows, int n_heads, int q_per_kv, int d, bool transpose) {
  extern __shared__ __align__(16) float shared[];
  float* x = shared;                // [d][kVectors]
  float* piece = x + kVectors * d;  // [piece_rows][d + 1], row i of the matrix as it is summed over
  const int kv_head = blockIdx.y, stride = d + 1, piece_rows = rows_of_piece(d);
  const int n_vectors = n_rows * q_per_kv, first = blockIdx.x * kVectors;
  const int n_items = d * (kVectors / kEach);
  const auto at = [&](int vector) {  // of this KV head -> offset
    const int row = vector / q_per_kv, head = kv_head * q_per_kv + vector % q_per_kv;
    return (static_cast<size_t>(row) * n_heads + head) * d;
  };
  for (int i = threadIdx.x; i < kVectors * d; i += kThreads) {
    const int v = i / d, c = i % d;
    float value = 0;
    if (first + v < n_vectors) value = in[at(first + v) + c] - (mean ? mean[kv_head * d + c] : 0.0f);
    x[c * kVectors + v] = value;
  }
  const float* m = matrix + static_cast<size_t>(kv_head) * d * d;
  float sum[kMaxItems][kEach] = {};
  for (int i0 = 0; i0 < d; i0 += piece_rows) {
    const int n = min(piece_rows, d - i0);
    __syncthreads();
#pragma unroll 8
    for (int k = threadIdx.x; k < n * d / 4; k += kThreads) {
      if (transpose) {  // four of i for one output channel
        const int j = k / (n / 4), i = k % (n / 4) * 4;
        const float4 w = __ldg(reinterpret_cast<const float4*>(m + static_cast<size_t>(j) * d + i0 + i));
        piece[i * stride + j] = w.x;
        piece[(i + 1) * stride + j] = w.y;
        piece[(i + 2) * stride + j] = w.z;
        piece[(i + 3) * stride + j] = w.w;
      } else {
        const int i = k / (d / 4), j = k % (d / 4) * 4;
        const float4 w = __ldg(reinterpret_cast<const float4*>(m + static_cast<size_t>(i0 + i) * d + j));
        piece[i * stride + j] = w.x;
        piece[i * stride + j + 1] = w.y;
        piece[i * stride + j + 2] = w.z;
        piece[i * stride + j + 3] = w.w;
      }
    }
    __syncthreads();
#pragma unroll
    for (int item = 0; item < kMaxItems; item++) {
      const int k = threadIdx.x + item * kThreads;
      if (k >= n_items) break;
      const int j = k % d, part = k / d;
#pragma unroll 8
      for (int i = 0; i < n; i++) {
        const float w = piece[i * stride + j];
        const float4 y = *reinterpret_cast<const float4*>(x + (i0 + i) * kVectors + part * kEach);
        sum[item][0] = fmaf(y.x, w, sum[item][0]);
        sum[item][1] = fmaf(y.y, w, sum[item][1]);
        sum[item][2] = fmaf(y.z, w, sum[item][2]);
        sum[item][3] = fmaf(y.w, w, sum[item][3]);
      }
    }
  }
#pragma unroll
  for (int item = 0; item < kMaxItems; item++) {
    const int k = threadIdx.x + item * kThreads;
    if (k >= n_items) break;
    const int j = k % d, part = k / d;
    const float added = add ? add[kv_head * d + j] : 0.0f;
#pragma unroll
    for (int v = 0; v < kEach; v++) {
      const int vector = first + part * kEach + v;
      if (vector < n_vectors) out[at(vector) + j] = sum[item][v] + added;
    }
  }
}

// ---- few vectors: a block takes 32 output channels of eight of them, a warp one vector, the same sums.
// Blocks of the same vectors are a cluster: out may be in, so nobody writes before all have read (sm_90 and
// later).

constexpr int kColumns = 32;
static_assert(kThreads == kColumns * kVectors);

__global__ void __launch_bounds__(kThreads)
    transform_few_kernel(const float* in, float* out, const float* matrix, const float* mean,
                         const float* add, int n_rows, int n_heads, int q_per_kv, int d, bool transpose) {
  extern __shared__ __align__(16) float shared[];
  float* x = shared;                // [d][kVectors]
  float* piece = x + kVectors * d;  // [d][kColumns + 1]
  const int kv_head = blockIdx.y, j0 = blockIdx.z * kColumns, first = blockIdx.x * kVectors;
  const int n_vectors = n_rows * q_per_kv;
  const auto at = [&](int vector) {
    const int row = vector / q_per_kv, head = kv_head * q_per_kv + vector % q_per_kv;
    return (static_cast<size_t>(row) * n_heads + head) * d;
  };
  const float* m = matrix + static_cast<size_t>(kv_head) * d * d;
#pragma unroll 4
  for (int k = threadIdx.x; k < d * kColumns / 4; k += kThreads) {
    const int i = transpose ? k % (d / 4) * 4 : k / (kColumns / 4);
    const int j = transpose ? k / (d / 4) : k % (kColumns / 4) * 4;
    if (j0 + j >= d) continue;
    const float4 w = __ldg(reinterpret_cast<const float4*>(
        transpose ? m + static_cast<size_t>(j0 + j) * d + i : m + static_cast<size_t>(i) * d + j0 + j));
    const int step = transpose ? kColumns + 1 : 1;  // to the next of the four
    float* to = piece + i * (kColumns + 1) + j;
    to[0] = w.x, to[step] = w.y, to[2 * step] = w.z, to[3 * step] = w.w;
  }
  for (int i = threadIdx.x; i < kVectors * d; i += kThreads) {
    const int v = i / d, c = i % d;
    float value = 0;
    if (first + v < n_vectors) value = in[at(first + v) + c] - (mean ? mean[kv_head * d + c] : 0.0f);
    x[c * kVectors + v] = value;
  }
  __syncthreads();
  const int j = threadIdx.x % kColumns, v = threadIdx.x / kColumns;
  float sum = 0;
#pragma unroll 16
  for (int i = 0; i < d; i++) sum = fmaf(x[i * kVectors + v], piece[i * (kColumns + 1) + j], sum);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" ::: "memory");
#endif
  if (j0 + j < d && first + v < n_vectors)
    out[at(first + v) + j0 + j] = sum + (add ? add[kv_head * d + j0 + j] : 0.0f);
}

bool has_clusters() {
  static const bool has = [] {
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major >= 9;
  }();
  return has;
}

}  // namespace

void launch_transform(const float* in, float* out, const float* matrix, const float* mean, const float* add,
                      int n_rows, int n_heads, int n_kv_heads, int head_dim, bool transpose,
                      cudaStream_t stream) {
  const int q_per_kv = n_heads / n_kv_heads;
  const int n_tiles = (n_rows * q_per_kv + kVectors - 1) / kVectors;
  constexpr int kManyBlocks = 256, kMaxFew = 256;  // head_dim that fits 48 KiB
  if (n_tiles * n_kv_heads < kManyBlocks && head_dim <= kMaxFew && has_clusters()) {
    const unsigned n_parts = static_cast<unsigned>((head_dim + kColumns - 1) / kColumns);
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = cluster.val.clusterDim.y = 1;
    cluster.val.clusterDim.z = n_parts;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(n_tiles), static_cast<unsigned>(n_kv_heads), n_parts);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = sizeof(float) * static_cast<size_t>(head_dim) * (kVectors + kColumns + 1);
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, transform_few_kernel, in, out, matrix, mean, add, n_rows, n_heads, q_per_kv,
                       head_dim, transpose);
    return;
  }
  const dim3 grid(n_tiles, n_kv_heads);
  const size_t shared =
      sizeof(float) * (kVectors * head_dim + static_cast<size_t>(rows_of_piece(head_dim)) * (head_dim + 1));
  transform_kernel<<<grid, kThreads, shared, stream>>>(in, out, matrix, mean, add, n_rows, n_heads, q_per_kv,
                                                       head_dim, transpose);
}

}  // namespace kv2::cuda
