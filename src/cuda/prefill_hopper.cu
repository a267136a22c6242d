// SPDX-License-Identifier: Apache-2.0
// prefill_kernel.cuh with the products of codes on Hopper's warpgroups, head_dim 128
// (docs/kernels/attend.md). A warpgroup of producers turns packed pages into bytes in shared memory; two of
// consumers, of which each warp has a tile, read them. The bits are those of the other kernels: integers are
// exact, and everything else is done in the same order.
#include "cuda/hopper_consumer.cuh"
#include "cuda/hopper_producer.cuh"
#include "cuda/prefill_hopper.h"

namespace kv2::cuda {
namespace {

using namespace hopper;

constexpr int kThreads = kProducers + 32 * kPrefillTiles;
constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;

__global__ void __launch_bounds__(kThreads, 1) prefill_hopper_kernel(const AttendArgs args) {
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& shared = *reinterpret_cast<HopperShared*>(raw);
  const int block = static_cast<int>(blockIdx.x) / args.n_kv_heads,
            kv_head = static_cast<int>(blockIdx.x) % args.n_kv_heads;
  if (threadIdx.x < kPrefillTiles)
    shared.tiles[threadIdx.x] = args.prefill_tiles[block * kPrefillTiles + threadIdx.x];
  if (threadIdx.x < HopperShared::kStages) {
    barrier_init(&shared.full[threadIdx.x], kProducers);
    barrier_init(&shared.empty[threadIdx.x], kPrefillTiles);
    barrier_fence();
  }
  __syncthreads();
  if (threadIdx.x < kProducers) {
    give_registers<kProducerRegisters>();
    Producer(args, shared, kv_head).run();
  } else {
    take_registers<kConsumerRegisters>();
    Consumer(args, shared, kv_head, (threadIdx.x - kProducers) / 32).run();
  }
}

}  // namespace

void launch_prefill_hopper(const AttendArgs& args, cudaStream_t stream) {
  cudaFuncSetAttribute(prefill_hopper_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(sizeof(HopperShared)));
  prefill_hopper_kernel<<<args.n_prefill_blocks * args.n_kv_heads, kThreads, sizeof(HopperShared), stream>>>(
      args);
}

}  // namespace kv2::cuda
