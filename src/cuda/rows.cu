// SPDX-License-Identifier: Apache-2.0
// Kernels of the ops on rows: embed, rms_norm, rope, swiglu, and the rounding of a linear's inputs. One block
// to a row, so that a row's bits do not depend on the batch.
#include <cuda_bf16.h>

#include "cuda/kernels.h"
#include "cuda/linear_inputs.cuh"
#include "cuda/norm.cuh"
#include "cuda/overlap.cuh"
#include "cuda/rope.cuh"

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

/// Narrow rows (QK norms): a warp each.
__global__ void rms_norm_narrow_kernel(const float* in, const float* weight, float* out, int n_rows,
                                       int width, float epsilon) {
  wait_for_inputs();
  let_next_begin();
  const int lane = threadIdx.x % 32;
  const size_t row = static_cast<size_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (row >= static_cast<size_t>(n_rows)) return;
  const float* x = in + row * width;
  float sum = 0;
  for (int i = lane; i < width; i += 32) sum = fmaf(x[i], x[i], sum);
  const float factor = norm_factor(warp_sum(sum), width, epsilon);
  for (int i = lane; i < width; i += 32) out[row * width + i] = x[i] * factor * weight[i];
}

constexpr int kWideThreads = 512, kWideEach = 4;  // float4 of a thread in registers

/// Wide rows: the block. How a row is summed depends on its width alone.
__global__ void __launch_bounds__(kWideThreads)
    rms_norm_wide_kernel(const float* in, const float* weight, float* out, int width, float epsilon,
                         const LinearInputs rounded) {
  __shared__ float sums[kWideThreads / 32];
  const size_t row = blockIdx.x;
  const auto* w4 = reinterpret_cast<const float4*>(weight);
  const int n4 = width / 4;
  float4 w[kWideEach], x[kWideEach];
#pragma unroll
  for (int v = 0; v < kWideEach; v++) {
    const int i = threadIdx.x + v * kWideThreads;
    if (i < n4) w[v] = __ldg(w4 + i);
  }
  let_next_begin();
  wait_for_inputs();
  const auto* x4 = reinterpret_cast<const float4*>(in + row * width);
  float sum = 0;
#pragma unroll
  for (int v = 0; v < kWideEach; v++) {
    const int i = threadIdx.x + v * kWideThreads;
    if (i < n4) x[v] = x4[i];
  }
#pragma unroll
  for (int v = 0; v < kWideEach; v++) {
    if (static_cast<int>(threadIdx.x) + v * kWideThreads >= n4) break;
    sum = fmaf(x[v].x, x[v].x, sum);
    sum = fmaf(x[v].y, x[v].y, sum);
    sum = fmaf(x[v].z, x[v].z, sum);
    sum = fmaf(x[v].w, x[v].w, sum);
  }
  const float factor = norm_factor(block_sum<kWideThreads>(sum, sums), width, epsilon);
#pragma unroll
  for (int v = 0; v < kWideEach; v++) {
    const int i = threadIdx.x + v * kWideThreads;
    if (i >= n4) break;
    const float4 y{x[v].x * factor * w[v].x, x[v].y * factor * w[v].y, x[v].z * factor * w[v].z,
                   x[v].w * factor * w[v].w};
    reinterpret_cast<float4*>(out + row * width)[i] = y;
    store_input4(rounded, static_cast<int>(row), 4 * i, y);
  }
}

/// Rows of any width.
__global__ void rms_norm_any_kernel(const float* in, const float* weight, float* out, int width,
                                    float epsilon, const LinearInputs rounded) {
  wait_for_inputs();
  let_next_begin();
  __shared__ float sums[kThreads / 32];
  const size_t row = blockIdx.x;
  const float* x = in + row * width;
  float sum = 0;
  for (int i = threadIdx.x; i < width; i += kThreads) sum = fmaf(x[i], x[i], sum);
  const float factor = norm_factor(block_sum<kThreads>(sum, sums), width, epsilon);
  for (int i = threadIdx.x; i < width; i += kThreads) {
    const float y = x[i] * factor * weight[i];
    out[row * width + i] = y;
    store_input(rounded, static_cast<int>(row), i, y);
  }
}

template <class T>
__global__ void round_rows_kernel(const T* x, const LinearInputs out, int n_in) {
  wait_for_inputs();
  let_next_begin();
  const int row = blockIdx.x;
  const T* from = x + static_cast<size_t>(row) * n_in;
  for (int i = blockIdx.y * kThreads + threadIdx.x; i < out.padded; i += kThreads * gridDim.y)
    store_input(out, row, i, i < n_in ? static_cast<float>(from[i]) : 0.0f);
}
__global__ void pad_rows_kernel(const float* x, float* out, int n_in, int padded) {
  const float* from = x + static_cast<size_t>(blockIdx.x) * n_in;
  float* to = out + static_cast<size_t>(blockIdx.x) * padded;
  for (int i = blockIdx.y * kThreads + threadIdx.x; i < padded; i += kThreads * gridDim.y)
    to[i] = i < n_in ? from[i] : 0.0f;
}

__global__ void rope_kernel(float* x, const int64_t* positions, const float* inv_frequency, int n_heads,
                            int head_dim, bool adjacent) {
  const int half = head_dim / 2;
  float* row = x + static_cast<size_t>(blockIdx.x) * n_heads * head_dim;
  const double pos = static_cast<double>(positions[blockIdx.x]);
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    const float2 angle = rope_angle(pos, inv_frequency[i]);
    const int first = adjacent ? 2 * i : i, second = adjacent ? 2 * i + 1 : i + half;
    for (int h = blockIdx.y * blockDim.y + threadIdx.y; h < n_heads; h += blockDim.y * gridDim.y) {
      float* head = row + static_cast<size_t>(h) * head_dim;
      rope_rotate(head[first], head[second], angle);
    }
  }
}

__device__ __forceinline__ float swiglu_of(float gate, float up) {
  return __fdiv_rn(gate, 1.0f + expf(-gate)) * up;
}

/// Four values of a thread.
__global__ void __launch_bounds__(kThreads)
    swiglu_wide_kernel(const float4* gate, const float4* up, float4* out, int width4, size_t stride4,
                       const LinearInputs rounded) {
  wait_for_inputs();
  let_next_begin();
  const size_t row = blockIdx.x;
  const int i = blockIdx.y * kThreads + threadIdx.x;
  if (i >= width4) return;
  const float4 g = __ldcs(gate + row * stride4 + i), u = __ldcs(up + row * stride4 + i);
  const float4 y{swiglu_of(g.x, u.x), swiglu_of(g.y, u.y), swiglu_of(g.z, u.z), swiglu_of(g.w, u.w)};
  out[row * width4 + i] = y;
  store_input4(rounded, static_cast<int>(row), 4 * i, y);
}

__global__ void swiglu_kernel(const float* gate, const float* up, float* out, int width, size_t stride,
                              const LinearInputs rounded) {
  wait_for_inputs();
  let_next_begin();
  const size_t row = blockIdx.x;
  for (int i = blockIdx.y * kThreads + threadIdx.x; i < width; i += kThreads * gridDim.y) {
    const float y = swiglu_of(gate[row * stride + i], up[row * stride + i]);
    out[row * width + i] = y;
    store_input(rounded, static_cast<int>(row), i, y);
  }
}

/// Blocks of a row: few rows are spread over more.
unsigned parts(int width, int n_rows) {
  const int each = (n_rows <= 16 ? 1 : 4) * kThreads, n = (width + each - 1) / each;
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
                     const LinearInputs& rounded, cudaStream_t stream) {
  if (width <= 256) {
    const int per_block = kThreads / 32;
    return launch_overlapped(rms_norm_narrow_kernel, (n_rows + per_block - 1) / per_block, kThreads, 0,
                             stream, in, weight, out, n_rows, width, epsilon);
  }
  if (width % 4 == 0 && width <= 4 * kWideThreads * kWideEach)
    return launch_overlapped(rms_norm_wide_kernel, n_rows, kWideThreads, 0, stream, in, weight, out, width,
                             epsilon, rounded);
  launch_overlapped(rms_norm_any_kernel, n_rows, kThreads, 0, stream, in, weight, out, width, epsilon,
                    rounded);
}

void launch_pad_rows(const float* x, float* out, int n_rows, int n_in, int padded, cudaStream_t stream) {
  pad_rows_kernel<<<dim3(n_rows, parts(padded, n_rows)), kThreads, 0, stream>>>(x, out, n_in, padded);
}

void launch_round_rows(const void* x, bool is_bf16, const LinearInputs& out, int n_rows, int n_in,
                       cudaStream_t stream) {
  const dim3 grid(n_rows, parts(out.padded, n_rows));
  if (is_bf16)
    launch_overlapped(round_rows_kernel<__nv_bfloat16>, grid, kThreads, 0, stream,
                      static_cast<const __nv_bfloat16*>(x), out, n_in);
  else
    launch_overlapped(round_rows_kernel<float>, grid, kThreads, 0, stream, static_cast<const float*>(x), out,
                      n_in);
}

void launch_rope(float* x, const int64_t* positions, const float* inv_frequency, int n_rows, int n_heads,
                 int head_dim, bool adjacent, cudaStream_t stream) {
  rope_kernel<<<dim3(n_rows, (n_heads + 7) / 8), dim3(32, 8), 0, stream>>>(x, positions, inv_frequency,
                                                                           n_heads, head_dim, adjacent);
}

void launch_swiglu(const float* gate, const float* up, float* out, int n_rows, int width, size_t stride,
                   const LinearInputs& rounded, cudaStream_t stream) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % sizeof(float4) == 0; };
  if (width % 4 == 0 && stride % 4 == 0 && aligned(gate) && aligned(up) && aligned(out)) {
    const unsigned each = (width / 4 + kThreads - 1) / kThreads;
    return launch_overlapped(swiglu_wide_kernel, dim3(n_rows, each), kThreads, 0, stream,
                             reinterpret_cast<const float4*>(gate), reinterpret_cast<const float4*>(up),
                             reinterpret_cast<float4*>(out), width / 4, stride / 4, rounded);
  }
  launch_overlapped(swiglu_kernel, dim3(n_rows, parts(width, n_rows)), kThreads, 0, stream, gate, up, out,
                    width, stride, rounded);
}

}  // namespace kv2::cuda
