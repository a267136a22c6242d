// SPDX-License-Identifier: Apache-2.0
// What the attention kernels share: the shape that follows from a head dim, whose queries a warp has, and how
// partial results are merged.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/fragment.h"
#include "cuda/kernels.h"
#include "cuda/mma.cuh"

namespace kv2::cuda::attention {

constexpr int kPage = 64;
constexpr int kWarps = 8;  // that a run's pages are divided among, in arithmetic if not in fact
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLowest = -1e30f;

/// Head dim, groups, and what follows from them.
template <int D>
struct Shape {
  static constexpr int kGroups = D > 128 ? 2 : 1, kGroup = D / kGroups;
  static constexpr int kSteps = D / 32, kHalf = D / 16 % 2;  // of K across the channels
  static constexpr int kTiles = D / 16;                      // of 16 channels
  static constexpr int kQuads = D / 64, kPair = D / 32 % 2;  // of V, see fragment.h
  static constexpr int kCodes = kPage * D / 4, kParams = kPage * kGroups * 4;
  static constexpr int kBytes = 2 * (kCodes + kParams);
  static constexpr int kFullTile = 16 * D * 2;  // K or V of 16 tokens of a full page
  static constexpr int kVCodes = kCodes, kKParams = 2 * kCodes, kVParams = 2 * kCodes + kParams;
  static constexpr int kStageBytes = kBytes > kFullTile ? kBytes : kFullTile;
  static_assert(kGroups == 1 || (kGroup % 32 == 0 && kHalf == 0));

  /// log4 of the factor that V's codes of a channel tile come with.
  __host__ __device__ static constexpr int v_field(int tile) {
    if (tile < 4 * kQuads) return tile % 4;
    return kPair && tile < 4 * kQuads + 2 ? tile % 2 : 0;
  }
};

/// 4^-times.
__device__ constexpr float quarter(int times) {
  return times == 0 ? 1.0f : times == 1 ? 0.25f : times == 2 ? 0.0625f : 0.015625f;
}

/// The (query, head) pairs of a warp: those of a tile, which are 4·NT at most.
template <int D>
struct Pairs {
  const AttendArgs& args;
  const AttendTile& tile;
  const int kv_head;

  __device__ int n() const { return tile.n_queries * tile.n_heads; }
  __device__ size_t row_of(int pair) const {  // of q and out, in heads
    const int query = pair / tile.n_heads, head = tile.first_head + pair % tile.n_heads;
    return static_cast<size_t>(tile.first_row + query) * (args.n_kv_heads * args.q_per_kv) +
           kv_head * args.q_per_kv + head;
  }
  /// An absent pair reads the last one and counts as zero.
  __device__ const float* q_row(int pair) const { return args.q + row_of(min(pair, n() - 1)) * D; }
};

/// before·x + added·y: the same instructions wherever results are merged.
__device__ __forceinline__ float merged(float before, float x, float added, float y) {
  return __fmaf_rn(added, y, __fmul_rn(before, x));
}

/// What two partial results are worth to their sum.
struct Worth {
  float m, before, added;
  __device__ Worth(float m_before, float m_added) {
    m = fmaxf(m_before, m_added);
    before = exp2_fast(__fsub_rn(m_before, m));
    added = exp2_fast(__fsub_rn(m_added, m));
  }
  __device__ float sum(float x_before, float x_added) const {
    return merged(before, x_before, added, x_added);
  }
};

}  // namespace kv2::cuda::attention
