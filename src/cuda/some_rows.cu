// SPDX-License-Identifier: Apache-2.0
// Linears of 17 to 64 rows: as few_rows.cu, with the rows shared by the warps of a block. Half of a block's
// warps have the first half of the rows; every output is still one chain of mma.m16n8k16 over k in order.
#include <cuda_bf16.h>

#include "cuda/kernels.h"
#include "cuda/mma.cuh"
#include "cuda/overlap.cuh"
#include "cuda/weight_stage.cuh"

namespace kv2::cuda {
namespace {

/// kTiles times 16 outputs, 16·NT rows.
template <int kTiles, int NT, int kStages>
struct Stage {
  static constexpr int kThreads = kTiles * 2 * 32;
  static constexpr int kWeights = kTiles * WeightStage::kBytes,
                       kBytes = kWeights + 16 * NT * WeightStage::kK * 2;
  static constexpr size_t kShared = static_cast<size_t>(kBytes) * kStages;
};

template <int kTiles, int NT, int kStages>
__global__ void __launch_bounds__(kTiles * 64, 1) some_rows_kernel(const FewRows p) {
  using S = Stage<kTiles, NT, kStages>;
  extern __shared__ __align__(128) unsigned char memory[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = warp / 2, first_row = warp % 2 * 8 * NT;
  const int first = blockIdx.x * kTiles * 16, n_stages = p.n_in / WeightStage::kK;
  const int x_bytes = p.n_rows * WeightStage::kK * 2;
  const uint32_t shared = WeightStage::address(memory);
  const auto fill_weights = [&](int stage, int slot) {
    if (stage >= n_stages) return;
    constexpr int kChunks = kTiles * 16 * 8;
#pragma unroll
    for (int i = 0; i < kChunks / S::kThreads; i++) {
      const int chunk = threadIdx.x + i * S::kThreads, row = chunk / 8, column = chunk % 8;
      const size_t from = min(first + row, p.n_out - 1);
      WeightStage::copy(
          shared + slot * S::kBytes + row * WeightStage::kRowBytes + column * 16,
          reinterpret_cast<const unsigned char*>(p.weights + from * p.n_in + stage * WeightStage::kK) +
              column * 16);
    }
  };
  const auto fill_x = [&](int stage, int slot) {
    if (stage < n_stages)
      for (int at = threadIdx.x * 16; at < x_bytes; at += S::kThreads * 16)
        WeightStage::copy(shared + slot * S::kBytes + S::kWeights + at,
                          p.x + static_cast<size_t>(stage) * x_bytes + at);
    WeightStage::commit();
  };
#pragma unroll 1
  for (int s = 0; s < kStages - 1; s++) fill_weights(s, s);
  let_next_begin();
  wait_for_inputs();
#pragma unroll 1
  for (int s = 0; s < kStages - 1; s++) fill_x(s, s);

  float c[NT][4] = {};
  int slot = 0;
#pragma unroll 1
  for (int stage = 0; stage < n_stages; stage++) {
    WeightStage::wait<kStages - 2>();
    __syncthreads();  // the stage is there for all, and the one before has been read by all
    const int before = slot == 0 ? kStages - 1 : slot - 1;
    fill_weights(stage + kStages - 1, before);
    fill_x(stage + kStages - 1, before);
    const uint32_t at = shared + slot * S::kBytes;
    uint4 a[WeightStage::kSteps];
    WeightStage::read(at + tile * WeightStage::kBytes, lane, a);
#pragma unroll
    for (int s = 0; s < WeightStage::kSteps; s++) {
      uint2 b[NT];
#pragma unroll
      for (int nt = 0; nt < NT; nt++)
        b[nt] = WeightStage::read_x(at + S::kWeights, s, first_row + 8 * nt + lane / 4, p.n_rows, lane % 4);
#pragma unroll
      for (int nt = 0; nt < NT; nt++) mma_bf16(c[nt], a[s], b[nt].x, b[nt].y);
    }
    slot = slot == kStages - 1 ? 0 : slot + 1;
  }
#pragma unroll
  for (int nt = 0; nt < NT; nt++) write_outputs(p, first + tile * 16, first_row + 8 * nt, lane, c[nt]);
}

template <int kTiles, int NT, int kStages>
void launch(const FewRows& p, cudaStream_t stream) {
  using S = Stage<kTiles, NT, kStages>;
  static_assert(S::kShared <= 227 * 1024);
  const auto kernel = some_rows_kernel<kTiles, NT, kStages>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(S::kShared));
  launch_overlapped(kernel, (p.n_out + 16 * kTiles - 1) / (16 * kTiles), S::kThreads, S::kShared, stream, p);
}

template <int NT>
void launch_for(const FewRows& p, int n_multiprocessors, cudaStream_t stream) {
  const int tiles = (p.n_out + 15) / 16, each = (tiles + n_multiprocessors - 1) / n_multiprocessors;
  if (each <= 2) return launch<2, NT, 14>(p, stream);
  if (each <= 3) return launch<3, NT, 12>(p, stream);
  if (each <= 6) return launch<6, NT, 8>(p, stream);
  launch<12, NT, 5>(p, stream);
}

}  // namespace

void launch_some_rows(const FewRows& p, int n_multiprocessors, cudaStream_t stream) {
  if (p.n_rows <= 32) return launch_for<2>(p, n_multiprocessors, stream);
  launch_for<4>(p, n_multiprocessors, stream);
}

}  // namespace kv2::cuda
