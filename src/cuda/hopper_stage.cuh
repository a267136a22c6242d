// SPDX-License-Identifier: Apache-2.0
// Shared memory of prefill_hopper.cu: pages as bytes, which its producers write and its consumers multiply.
#pragma once

#include <cstddef>

#include "cuda/attend_shape.cuh"
#include "cuda/prefill_hopper.h"
#include "cuda/prefill_pieces.cuh"

namespace kv2::cuda::hopper {

using namespace attention;

constexpr int kD = kHopperHeadDim, kProducers = 128;
using S = Shape<kD>;

/// A page's parameters as consumers need them.
struct TokenParams {
  float k_scale, k_offset;  // k_scale times 4^-f, since codes come times 4^f
  float v_scale, v_offset;  // v_scale in units of the weights
};

/// A packed page as bytes, code·4^f as fragment.h has them, or keys and values of 16 tokens of a full one.
///   keys     [64 rows][128]: row 8i + 2t + e is token 16t + 2i + e; pieces of 16 bytes 2t + j hold channels
///   64j + 16w + 4t ..
///            + 3, w = 0 .. 3
///   values   [128 channels][64]: piece c, bytes 4t .. 4t + 3 are tokens 16t + 4c ..
struct Stage {
  unsigned char keys[64 * kD], values[kD * 64];
  TokenParams params[64 + 3];  // of token i at i + i / 16: other banks for the four lanes of a quad
  float v_units;               // what a weight of 1 is worth
};
static_assert(offsetof(Stage, values) % 1024 == 0 && 2 * S::kFullTile <= 64 * kD);

struct HopperShared {
  static constexpr int kStages = 5, kStageBytes = (sizeof(Stage) + 1023) / 1024 * 1024;
  struct Part {
    float4 o[kD / 8][32];
    float2 ml[16];
  };
  unsigned char stages[kStages][kStageBytes];
  Part run[kPrefillTiles], total[kPrefillTiles];
  Piece pieces[kMaxPieces];
  int n_pieces;
  AttendTile tiles[kPrefillTiles];
  uint64_t full[kStages], empty[kStages];

  __device__ Stage& stage(uint32_t i) { return *reinterpret_cast<Stage*>(stages[i % kStages]); }
};

}  // namespace kv2::cuda::hopper
