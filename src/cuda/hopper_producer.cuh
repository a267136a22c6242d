// SPDX-License-Identifier: Apache-2.0
// The producers of prefill_hopper.cu: a warpgroup that turns packed pages into bytes as wgmma reads them, and
// copies full ones.
#pragma once

#include "cuda/fixed_point.cuh"
#include "cuda/hopper_stage.cuh"
#include "cuda/wgmma.cuh"

namespace kv2::cuda::hopper {

using namespace attention;

/// What a producer reads of a packed page: 16 codes of two steps, and in the first warp two tokens'
/// parameters.
struct PageWords {
  uint4 first, second;
  __half2 k[2], v[2];
};

/// Issued here and not where the values are used: the compiler must not move it behind a wait.
__device__ __forceinline__ uint4 load_ahead(const void* from) {
  uint4 x;
  asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3},[%4];\n"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x;
}
__device__ __forceinline__ __half2 load_ahead_pair(const void* from) {
  uint32_t x;
  asm volatile("ld.global.nc.u32 %0,[%1];\n" : "=r"(x) : "l"(from));
  return *reinterpret_cast<__half2*>(&x);
}

struct Producer {
  const AttendArgs& args;
  HopperShared& shared;
  const int kv_head, thread, w, lane, g, t;
  int places[4];  // in Stage of this lane's pieces: of even and odd rows of keys, or of four pieces of values
  uint32_t at = 0;

  __device__ Producer(const AttendArgs& a, HopperShared& s, int head)
      : args(a),
        shared(s),
        kv_head(head),
        thread(threadIdx.x),
        w(thread / 32),
        lane(thread % 32),
        g(lane >> 2),
        t(lane & 3) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (w < 2) {  // row 8·(4·(g % 2) + F) + 2·(g / 2) + r
        const int row = 32 * (g & 1) + 2 * (g >> 1) + (i & 1);
        places[i] = row * 128 + ((2 * t + step_pair()) ^ (row & 7)) * 16;
      } else {  // channel 64·a + 16·F + 8·r + g
        places[i] = offsetof(Stage, values) + (64 * step_pair() + g) * 64 + (i ^ (g >> 1)) * 16 + 4 * t;
      }
    }
  }

  __device__ void sync() const {
    asm volatile("bar.sync 1, %0;\n" ::"n"(kProducers) : "memory");
  }
  /// Warps 0 and 1 have keys, a step pair each, in turns so that no two lanes meet in a bank; 2 and 3 values.
  __device__ int step_pair() const {
    return w < 2 ? w ^ (g & 1) : w - 2;
  }

  __device__ __forceinline__ void load(Piece piece, PageWords& words) const {
    if ((piece.word & 15) != 8) return;
    const std::byte* page = args.packed.head(static_cast<int32_t>(piece.word >> 4), kv_head);
    const std::byte* codes = page + (w < 2 ? 0 : S::kVCodes) + step_pair() * 1024 + lane * 16;
    words.first = load_ahead(codes);
    words.second = load_ahead(codes + 512);
    if (w == 0) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        words.k[i] = load_ahead_pair(page + S::kKParams + (lane + 32 * i) * 4);
        words.v[i] = load_ahead_pair(page + S::kVParams + (lane + 32 * i) * 4);
      }
    }
  }

  template <int F>
  __device__ __forceinline__ void put_keys(unsigned char* stage, const PageWords& x) const {
    *reinterpret_cast<uint4*>(stage + places[0] + F * 1024) =
        uint4{field<F>(x.first.x), field<F>(x.first.z), field<F>(x.second.x), field<F>(x.second.z)};
    *reinterpret_cast<uint4*>(stage + places[1] + F * 1024) =
        uint4{field<F>(x.first.y), field<F>(x.first.w), field<F>(x.second.y), field<F>(x.second.w)};
  }
  template <int F>
  __device__ __forceinline__ void put_values(unsigned char* stage, const uint32_t (&pieces)[2][4]) const {
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int c = 0; c < 4; c++)
        *reinterpret_cast<uint32_t*>(stage + places[c] + F * 1024 + r * 512) = field<F>(pieces[r][c]);
  }
  __device__ void put_params(Stage& stage, const PageWords& x) const {
    const __half2 largest = __hmax2(x.v[0], x.v[1]);
    const uint32_t bits =
        __reduce_max_sync(~0u, static_cast<uint32_t>(__half_as_ushort(__low2half(largest))));
    const WeightUnits units(bits);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int token = lane + 32 * i;
      const float2 k = __half22float2(x.k[i]), v = __half22float2(x.v[i]);
      stage.params[token + token / 16] = {k.x * quarter(token >> 1 & 3), k.y, v.x * units.up, v.y};
    }
    if (lane == 0) stage.v_units = units.down;
  }
  __device__ __forceinline__ void put(Stage& stage, const PageWords& x) const {
    auto* bytes = reinterpret_cast<unsigned char*>(&stage);
    if (w == 0) put_params(stage, x);
    if (w < 2) {
      put_keys<0>(bytes, x);
      put_keys<1>(bytes, x);
      put_keys<2>(bytes, x);
      put_keys<3>(bytes, x);
    } else {
      // tokens 16t + 8·(byte / 2) + 2j + byte % 2 are in word j: two words make two pieces of four tokens
      const uint32_t words[2][4] = {{x.first.x, x.first.z, x.second.x, x.second.z},
                                    {x.first.y, x.first.w, x.second.y, x.second.w}};
      uint32_t pieces[2][4];
#pragma unroll
      for (int r = 0; r < 2; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
          pieces[r][c] = __byte_perm(words[r][c % 2 * 2], words[r][c % 2 * 2 + 1], c < 2 ? 0x5410 : 0x7632);
      put_values<0>(bytes, pieces);
      put_values<1>(bytes, pieces);
      put_values<2>(bytes, pieces);
      put_values<3>(bytes, pieces);
    }
  }

  /// Keys and values of 16 tokens; the list has a piece for each.
  __device__ void copy_full(Stage& stage, Piece keys, uint64_t* bar) const {
    if (thread != 0) return arrive_barrier(bar);
    const std::byte* from =
        args.full.head(static_cast<int32_t>(keys.word >> 4), kv_head) + (keys.word & 3) * S::kFullTile;
    expect_bytes(bar, 2 * S::kFullTile);
    copy_bytes(stage.keys, from, S::kFullTile, bar);
    copy_bytes(stage.keys + S::kFullTile, from + kPage * kD * 2, S::kFullTile, bar);
  }

  __device__ __forceinline__ void run() {
    const AttendTile& tile = shared.tiles[0];
    const int n_runs = Runs{tile.query_page}.count();
#pragma unroll 1
    for (int index = 0; index < n_runs; index++) {
      sync();  // the list has been read
      list_pieces(tile, index, shared.pieces, shared.n_pieces, thread, kProducers);
      sync();
      const int n = shared.n_pieces;
      PageWords words{};
      load(shared.pieces[0], words);
#pragma unroll 1
      for (int i = 0; i < n; at++) {
        const Piece piece = shared.pieces[i];
        const bool packed = (piece.word & 15) == 8;
        const uint32_t stage = at % HopperShared::kStages, turn = at / HopperShared::kStages;
        if (turn > 0) wait_barrier(&shared.empty[stage], (turn - 1) & 1);
        if (packed) {
          put(shared.stage(stage), words);
          fence_for_wgmma();
          arrive_barrier(&shared.full[stage]);
        } else {
          copy_full(shared.stage(stage), piece, &shared.full[stage]);
        }
        i += packed ? 1 : 2;
        if (i < n) load(shared.pieces[i], words);
      }
    }
  }
};

}  // namespace kv2::cuda::hopper
