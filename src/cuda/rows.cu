// SPDX-License-Identifier: Apache-2.0
// Kernels of the ops on rows: embed, rms_norm, rope, swiglu, and the rounding of a linear's inputs. One block
// to a row, so that a row's bits do not depend on the batch.
#include <cuda_bf16.h>

#include "cuda/kernels.h"

namespace kv2::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void embed_kernel(const T* table, size_t row_stride, int width, const int32_t* tokens,
                             float* out) {
  const T* from = table + static_cast<size_t>(tokens[blockIdx.x]) * row_stride;
  float* to = out + static_cast<size_t>(blockIdx.x) * width;
  for (int i = threadIdx.x; i < width; i += kThreads) to[i] = static_cast<float>(from[i]);
}

__global__ void rms_norm_kernel(const float* in, const float* weight, float* out, int n_rows, int width,
                                float epsilon) {
  // narrow rows (QK norms): a warp each; wide rows: the block. Which one depends on the width alone.
  const bool narrow = width <= 256;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const size_t row = narrow ? static_cast<size_t>(blockIdx.x) * (kThreads / 32) + warp : blockIdx.x;
  const int first = narrow ? lane : threadIdx.x, step = narrow ? 32 : kThreads;
  const bool inside = row < static_cast<size_t>(n_rows);
  const float* x = in + row * width;
  float sum = 0;
  if (inside)
    for (int i = first; i < width; i += step) sum = fmaf(x[i], x[i], sum);
  for (int m = 16; m; m >>= 1) sum += __shfl_xor_sync(~0u, sum, m);
  if (!narrow) {
    __shared__ float sums[kThreads / 32];
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < kThreads / 32; w++) sum += sums[w];
  }
  if (!inside) return;
  const float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(sum, static_cast<float>(width)) + epsilon));
  for (int i = first; i < width; i += step) out[row * width + i] = x[i] * factor * weight[i];
}

template <class T>
__global__ void round_rows_kernel(const float* x, T* out, int n_in, int padded) {
  const float* from = x + static_cast<size_t>(blockIdx.x) * n_in;
  T* to = out + static_cast<size_t>(blockIdx.x) * padded;
  for (int i = blockIdx.y * kThreads + threadIdx.x; i < padded; i += kThreads * gridDim.y)
    to[i] = static_cast<T>(i < n_in ? from[i] : 0.0f);
}

// The angle is a product in double: at position 131071 a float product is off by up to 4e-3 radians.
__global__ void rope_kernel(float* x, const int64_t* positions, const float* inv_frequency, int n_heads,
                            int head_dim, bool adjacent) {
  const int half = head_dim / 2;
  float* row = x + static_cast<size_t>(blockIdx.x) * n_heads * head_dim;
  const double pos = static_cast<double>(positions[blockIdx.x]);
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    double s, c;
    sincos(pos * inv_frequency[i], &s, &c);
    const int first = adjacent ? 2 * i : i, second = adjacent ? 2 * i + 1 : i + half;
    for (int h = blockIdx.y * blockDim.y + threadIdx.y; h < n_heads; h += blockDim.y * gridDim.y) {
      float* head = row + static_cast<size_t>(h) * head_dim;
      const float a = head[first], b = head[second];
      const float fc = static_cast<float>(c), fs = static_cast<float>(s);
      head[first] = fmaf(a, fc, -(b * fs));
      head[second] = fmaf(a, fs, b * fc);
    }
  }
}

__global__ void swiglu_kernel(const float* gate, const float* up, float* out, int width, size_t stride) {
  const size_t row = blockIdx.x;
  for (int i = blockIdx.y * kThreads + threadIdx.x; i < width; i += kThreads * gridDim.y) {
    const float g = gate[row * stride + i];
    out[row * width + i] = __fdiv_rn(g, 1.0f + expf(-g)) * up[row * stride + i];
  }
}

unsigned parts(int width) {
  const int n = (width + 4 * kThreads - 1) / (4 * kThreads);
  return static_cast<unsigned>(n < 1 ? 1 : n);
}

}  // namespace

bool has_code_for_this_device() {
  cudaFuncAttributes attributes;
  const bool has = cudaFuncGetAttributes(&attributes, swiglu_kernel) == cudaSuccess;
  cudaGetLastError();
  return has;
}

void launch_embed(const void* table, bool is_bf16, size_t row_stride, int width, const int32_t* tokens,
                  float* out, int n_rows, cudaStream_t stream) {
  if (is_bf16)
    embed_kernel<<<n_rows, kThreads, 0, stream>>>(static_cast<const __nv_bfloat16*>(table), row_stride, width,
                                                  tokens, out);
  else
    embed_kernel<<<n_rows, kThreads, 0, stream>>>(static_cast<const float*>(table), row_stride, width, tokens,
                                                  out);
}

void launch_rms_norm(const float* in, const float* weight, float* out, int n_rows, int width, float epsilon,
                     cudaStream_t stream) {
  const int per_block = width <= 256 ? kThreads / 32 : 1;
  rms_norm_kernel<<<(n_rows + per_block - 1) / per_block, kThreads, 0, stream>>>(in, weight, out, n_rows,
                                                                                 width, epsilon);
}

void launch_round_rows(const float* x, void* out, bool to_bf16, int n_rows, int n_in, int padded,
                       cudaStream_t stream) {
  const dim3 grid(n_rows, parts(padded));
  if (to_bf16)
    round_rows_kernel<<<grid, kThreads, 0, stream>>>(x, static_cast<__nv_bfloat16*>(out), n_in, padded);
  else
    round_rows_kernel<<<grid, kThreads, 0, stream>>>(x, static_cast<float*>(out), n_in, padded);
}

void launch_rope(float* x, const int64_t* positions, const float* inv_frequency, int n_rows, int n_heads,
                 int head_dim, bool adjacent, cudaStream_t stream) {
  rope_kernel<<<dim3(n_rows, (n_heads + 7) / 8), dim3(32, 8), 0, stream>>>(x, positions, inv_frequency,
                                                                           n_heads, head_dim, adjacent);
}

void launch_swiglu(const float* gate, const float* up, float* out, int n_rows, int width, size_t stride,
                   cudaStream_t stream) {
  swiglu_kernel<<<dim3(n_rows, parts(width)), kThreads, 0, stream>>>(gate, up, out, width, stride);
}

}  // namespace kv2::cuda
