// SPDX-License-Identifier: Apache-2.0
// Linears of few rows (decoding): weights stream once through shared memory, 16 outputs to a warp, and every
// output is one chain of mma.m16n8k16 over k in order. That is what cuBLAS's algorithms without split-K come
// to as well, bit for bit, so that a row is the same here and in a prompt; linear.cpp checks it for every
// shape of weights before it counts on it. What bounds a small matrix is that chain: 16 inputs in about 33
// cycles.
#include <cuda_bf16.h>

#include "cuda/kernels.h"
#include "cuda/mma.cuh"
#include "cuda/overlap.cuh"
#include "cuda/weight_stage.cuh"

namespace kv2::cuda {
namespace {

/// A warp's ring of stages: 16 rows of weights and all rows of x, 64 inputs of each.
template <int NT, int kStages>
struct Ring {
  static constexpr int kSteps = WeightStage::kSteps;
  static constexpr int kBytes = WeightStage::kBytes + NT * 8 * WeightStage::kK * 2;  // of a stage

  const FewRows& p;
  const int lane, n_stages, x_bytes;
  uint32_t memory, to[4];
  const unsigned char* rows[4];  // what this lane copies of a stage

  __device__ Ring(const FewRows& args, unsigned char* shared, int first_row)
      : p(args),
        lane(threadIdx.x % 32),
        n_stages(args.n_in / WeightStage::kK),
        x_bytes(args.n_rows * WeightStage::kK * 2),
        memory(WeightStage::address(shared)) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int chunk = lane + 32 * i, row = chunk / 8, column = chunk % 8;
      const size_t from = min(first_row + row, p.n_out - 1);  // rows past the end are read and not written
      rows[i] = reinterpret_cast<const unsigned char*>(p.weights + from * p.n_in) + column * 16;
      to[i] = memory + row * WeightStage::kRowBytes + column * 16;
    }
  }
  __device__ void fill_weights(int stage, int slot) const {
    if (stage >= n_stages) return;
#pragma unroll
    for (int i = 0; i < 4; i++)
      WeightStage::copy(to[i] + slot * kBytes, rows[i] + static_cast<size_t>(stage) * (WeightStage::kK * 2));
  }
  __device__ void fill_x(int stage, int slot) const {
    if (stage < n_stages)
#pragma unroll
      for (int i = 0; i < 2 * NT; i++) {
        const int at = (lane + 32 * i) * 16;
        if (at < x_bytes)
          WeightStage::copy(memory + slot * kBytes + WeightStage::kBytes + at,
                            p.x + static_cast<size_t>(stage) * x_bytes + at);
      }
    WeightStage::commit();
  }
  /// Fragments of the four steps of a stage that has arrived.
  __device__ void read(int slot, uint4 (&a)[kSteps], uint2 (&b)[kSteps][NT]) const {
    const uint32_t stage = memory + slot * kBytes;
    WeightStage::read(stage, lane, a);
#pragma unroll
    for (int s = 0; s < kSteps; s++)
#pragma unroll
      for (int nt = 0; nt < NT; nt++)
        b[s][nt] = WeightStage::read_x(stage + WeightStage::kBytes, s, 8 * nt + lane / 4, p.n_rows, lane % 4);
  }
};

template <int NT, int kWarps, int kStages>
__global__ void __launch_bounds__(kWarps * 32, 1) few_rows_kernel(const FewRows p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = (blockIdx.x * kWarps + warp) * 16;
  if (first >= p.n_out) return wait_for_inputs();
  const Ring<NT, kStages> ring(p, memory + warp * (kStages * Ring<NT, kStages>::kBytes), first);
#pragma unroll 1
  for (int s = 0; s < kStages - 1; s++) ring.fill_weights(s, s);
  let_next_begin();
  wait_for_inputs();  // weights do not depend on the kernel before, x does
#pragma unroll 1
  for (int s = 0; s < kStages - 1; s++) ring.fill_x(s, s);

  constexpr int kSteps = WeightStage::kSteps;
  uint4 a[kSteps];
  uint2 b[kSteps][NT];
  float c[NT][4] = {};
  const auto arrived = [] {
    WeightStage::wait<kStages - 2>();
    __syncwarp();
  };
  arrived();
  ring.read(0, a, b);
  int slot = 0;
#pragma unroll 1
  for (int stage = 0; stage < ring.n_stages; stage++) {
    // the slot before this one has been read by all lanes
    const int before = slot == 0 ? kStages - 1 : slot - 1;
    ring.fill_weights(stage + kStages - 1, before);
    ring.fill_x(stage + kStages - 1, before);
    slot = slot == kStages - 1 ? 0 : slot + 1;
    arrived();
    uint4 next_a[kSteps];
    uint2 next_b[kSteps][NT];
    ring.read(slot, next_a, next_b);  // past the last stage: read and not used
#pragma unroll
    for (int s = 0; s < kSteps; s++)
#pragma unroll
      for (int nt = 0; nt < NT; nt++) mma_bf16(c[nt], a[s], b[s][nt].x, b[s][nt].y);
#pragma unroll
    for (int s = 0; s < kSteps; s++) {
      a[s] = next_a[s];
#pragma unroll
      for (int nt = 0; nt < NT; nt++) b[s][nt] = next_b[s][nt];
    }
  }
#pragma unroll
  for (int nt = 0; nt < NT; nt++) write_outputs(p, first, 8 * nt, lane, c[nt]);
}

template <int NT, int kWarps, int kStages>
void launch(const FewRows& p, cudaStream_t stream) {
  constexpr size_t kShared = static_cast<size_t>(kWarps) * kStages * Ring<NT, kStages>::kBytes;
  static_assert(kShared <= 227 * 1024);
  const auto kernel = few_rows_kernel<NT, kWarps, kStages>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
  const int n_blocks = (p.n_out + 16 * kWarps - 1) / (16 * kWarps);
  launch_overlapped(kernel, n_blocks, kWarps * 32, kShared, stream, p);
}

/// Warps of a block: the fewest with which one wave of blocks covers all outputs.
template <int NT>
void launch_for(const FewRows& p, int n_multiprocessors, cudaStream_t stream) {
  const int tiles = (p.n_out + 15) / 16, each = (tiles + n_multiprocessors - 1) / n_multiprocessors;
  if (each <= 2) return launch<NT, 2, 16>(p, stream);
  if (each <= 3) return launch < NT, 3, NT == 1 ? 16 : 12 > (p, stream);
  if (each <= 6) return launch < NT, 6, NT == 1 ? 10 : 8 > (p, stream);
  launch<NT, 12, NT == 1 ? 5 : 4>(p, stream);
}

}  // namespace

bool few_rows_fit(int n_rows, int n_in) {
  return n_rows <= 16 && n_in % WeightStage::kK == 0;
}

void launch_few_rows(const FewRows& p, int n_multiprocessors, cudaStream_t stream) {
  if (p.n_rows <= 8) return launch_for<1>(p, n_multiprocessors, stream);
  launch_for<2>(p, n_multiprocessors, stream);
}

}  // namespace kv2::cuda
