// SPDX-License-Identifier: Apache-2.0
// A consuming warp of prefill_hopper.cu: a tile's queries through all pages, and the merging of what they sum
// up to.
//
// In its registers rows are pairs and columns tokens or channels: lane (g, t) has pairs g and g + 8, of a
// packed page tokens 16t .. 16t + 15 (which two lanes of attend_kernel.cuh have, 8 each), of 16 tokens of a
// full one 2t, 2t + 1, 2t + 8 and 2t + 9 (likewise), and channels 8j + 2t, + 1 of the output.
#pragma once

#include "cuda/attend_full.cuh"
#include "cuda/fixed_point.cuh"
#include "cuda/hopper_sums.cuh"
#include "cuda/wgmma.cuh"

namespace kv2::cuda::hopper {

using namespace attention;

struct Consumer {
  const AttendArgs& args;
  HopperShared& shared;
  const AttendTile& tile;
  const Pairs<kD> pairs;
  const int w, lane, g, t;
  uint32_t upper[4][4], lower[4][4];  // digits of q as A of four steps
  float unit[2], q_sum[2];
  uint32_t at = 0;
  RowSums sums;

  __device__ Consumer(const AttendArgs& a, HopperShared& s, int kv_head, int warp)
      : args(a),
        shared(s),
        tile(s.tiles[warp]),
        pairs{a, tile, kv_head},
        w(warp),
        lane(threadIdx.x % 32),
        g(lane >> 2),
        t(lane & 3) {}

  __device__ bool here(int r) const { return g + 8 * r < pairs.n(); }
  /// Absent pairs read any row and count as zero.
  __device__ const float* q_row(int r) const {
    return args.q + pairs.row_of(max(0, min(g + 8 * r, pairs.n() - 1))) * kD;
  }

  __device__ __forceinline__ void prepare() {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float* row = q_row(r);
      float4 x[2][4];  // channels 64j + 16t + 4·step
      float largest = 0, sum = 0;
#pragma unroll
      for (int j = 0; j < 2; j++)
#pragma unroll
        for (int step = 0; step < 4; step++) {
          const float4 v = __ldg(reinterpret_cast<const float4*>(row + 64 * j + 16 * t + 4 * step));
          x[j][step] = v;
          largest = fmaxf(largest, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
          sum += (v.x + v.y) + (v.z + v.w);
        }
#pragma unroll
      for (int mask = 1; mask < 4; mask <<= 1) {
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
        sum += __shfl_xor_sync(~0u, sum, mask);
      }
      const FixedPoint fixed(largest, sum, here(r));
      int total = 0;
#pragma unroll
      for (int j = 0; j < 2; j++)
#pragma unroll
        for (int step = 0; step < 4; step++) {
          const float4 v = x[j][step];
          const int values[4] = {fixed.of(v.x), fixed.of(v.y), fixed.of(v.z), fixed.of(v.w)};
          total += (values[0] + values[1]) + (values[2] + values[3]);
          upper[step][2 * j + r] = digits(values, false);
          lower[step][2 * j + r] = digits(values, true);
        }
#pragma unroll
      for (int mask = 1; mask < 4; mask <<= 1) total += __shfl_xor_sync(~0u, total, mask);
      unit[r] = fixed.step * (args.softmax_scale * kLog2e);
      q_sum[r] = fixed.is_nan ? NAN : static_cast<float>(total);
    }
  }

  __device__ Stage& wait() {
    const uint32_t stage = at % HopperShared::kStages;
    wait_barrier(&shared.full[stage], at / HopperShared::kStages & 1);
    return shared.stage(stage);
  }
  __device__ void done() {
    __syncwarp();
    if (lane == 0) arrive_barrier(&shared.empty[at % HopperShared::kStages]);
    at++;
  }

  __device__ __forceinline__ void packed_page() {
    const Stage& stage = wait();
    int c[2][32];
    {
      const uint64_t b = rows_descriptor(shared_address(stage.keys), Swizzle::Row128);
      wgmma_begin();
#pragma unroll
      for (int step = 0; step < 4; step++) wgmma_signed(c[0], upper[step], b + 2 * step, step > 0);
#pragma unroll
      for (int step = 0; step < 4; step++) wgmma_signed(c[1], lower[step], b + 2 * step, step > 0);
      wgmma_end();
      wgmma_wait<0>();
    }
    const TokenParams* params = stage.params + 17 * t;
    float s[2][16], largest[2], worth[2];
#pragma unroll
    for (int i = 0; i < 16; i++) {
      const float2 k = *reinterpret_cast<const float2*>(&params[i].k_scale);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int n = i / 2 * 4 + 2 * r + i % 2;
        s[r][i] = fmaf(k.x, static_cast<float>(c[0][n] * 256 + c[1][n]), k.y * q_sum[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float x = fmaxf(s[r][0], s[r][1]);
#pragma unroll
      for (int i = 2; i < 16; i++) x = fmaxf(x, s[r][i]);
      largest[r] = over_row(x) * unit[r];
    }
    sums.raise(largest, worth);
    uint32_t p_upper[2][4], p_lower[2][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {  // 8 tokens, which are a step of V, too
      float sum[2] = {}, offsets[2] = {}, weight[2][8];
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const float2 v = *reinterpret_cast<const float2*>(&params[8 * h + i].v_scale);
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const float e = exp2_fast(fmaf(s[r][8 * h + i], unit[r], -largest[r]));
          sum[r] += e;
          offsets[r] = fmaf(e, v.y, offsets[r]);
          weight[r][i] = fmaf(e, v.x, 0x1p23f);
        }
      }
#pragma unroll
      for (int r = 0; r < 2; r++) {
        sums.l[r][h] = fmaf(sum[r], worth[r], sums.l[r][h]);
        sums.z[r][h] = fmaf(offsets[r], worth[r], sums.z[r][h]);
#pragma unroll
        for (int q = 0; q < 2; q++) {
          const auto bits = [&](int i) { return __float_as_uint(weight[r][4 * q + i]); };
          const uint32_t a = __byte_perm(bits(0), bits(1), 0x5140), b = __byte_perm(bits(2), bits(3), 0x5140);
          p_lower[h][2 * q + r] = __byte_perm(a, b, 0x5410);
          p_upper[h][2 * q + r] = __byte_perm(a, b, 0x7632);
        }
      }
    }
    const float v_units = stage.v_units;
    const float units[2] = {worth[0] * v_units, worth[1] * v_units};
    int d[2][2][16];  // of two quarters of the channels, in turns
    multiply_values(stage, 0, p_upper, p_lower, d[0]);
#pragma unroll
    for (int part = 0; part < 4; part++) {
      if (part < 3) {
        multiply_values(stage, part + 1, p_upper, p_lower, d[(part + 1) % 2]);
        wgmma_wait<1>();
      } else {
        wgmma_wait<0>();
        done();
      }
#pragma unroll
      for (int i = 0; i < 16; i++) {
        float& o = sums.o[16 * part + i];
        o = fmaf(static_cast<float>(d[part % 2][0][i] * 256 + d[part % 2][1][i]), units[i / 2 % 2], o);
      }
    }
  }
  __device__ __forceinline__ void multiply_values(const Stage& stage, int part, const uint32_t (&upper)[2][4],
                                                  const uint32_t (&lower)[2][4], int (&d)[2][16]) const {
    const uint64_t b = rows_descriptor(shared_address(stage.values), Swizzle::Row64) + part * (32 * 64 / 16);
    wgmma_begin();
#pragma unroll
    for (int h = 0; h < 2; h++) wgmma_unsigned(d[0], upper[h], b + 2 * h, h > 0);
#pragma unroll
    for (int h = 0; h < 2; h++) wgmma_unsigned(d[1], lower[h], b + 2 * h, h > 0);
    wgmma_end();
  }

  /// 16 tokens of a full page; see FullPages.
  __device__ __forceinline__ void full_tile(int tile16, bool own) {
    const Stage& stage = wait();
    const auto* keys = reinterpret_cast<const uint4*>(stage.keys);
    const auto* values = reinterpret_cast<const uint4*>(stage.keys + S::kFullTile);
    const float* rows[2] = {q_row(0), q_row(1)};
    float c[2][2][4] = {};  // [8 tokens][rounded, lost]
#pragma unroll
    for (int i = 0; i < S::kTiles; i++) {
      uint32_t a[2][4];
#pragma unroll
      for (int r = 0; r < 2; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          float2 x = __ldg(reinterpret_cast<const float2*>(rows[r] + 16 * i + 8 * h + 2 * t));
          if (!here(r)) x = {0.0f, 0.0f};
          a[0][2 * h + r] = split_bf16(x.x, x.y, false);
          a[1][2 * h + r] = split_bf16(x.x, x.y, true);
        }
      const uint4 k = keys[i * 32 + lane];
#pragma unroll
      for (int part = 0; part < 2; part++) {
        const uint4 q{a[part][0], a[part][1], a[part][2], a[part][3]};
        mma_bf16(c[0][part], q, k.x, k.z);
        mma_bf16(c[1][part], q, k.y, k.w);
      }
    }
    float s[2][2][2], largest[2], worth[2];  // [row][8 tokens][e]
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int query = (g + 8 * r) / tile.n_heads;
      const int last = own ? tile.first_in_page + max(0, min(query, tile.n_queries - 1)) : kPage;
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          s[r][h][e] = (c[h][0][2 * r + e] + c[h][1][2 * r + e]) * (args.softmax_scale * kLog2e);
          if (tile16 * 16 + 8 * h + 2 * t + e > last) s[r][h][e] = -INFINITY;
        }
      largest[r] = over_row(fmaxf(fmaxf(s[r][0][0], s[r][0][1]), fmaxf(s[r][1][0], s[r][1][1])));
    }
    sums.raise(largest, worth);
    uint32_t p[2][4];  // rounded and lost as A
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float sum[2] = {};
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float e[2], rounded[2];
#pragma unroll
        for (int x = 0; x < 2; x++) {
          e[x] = exp2_fast(s[r][h][x] - largest[r]);
          sum[x] += e[x];
          rounded[x] = __bfloat162float(__float2bfloat16_rn(e[x]));
        }
        p[0][2 * h + r] = split_bf16(rounded[0], rounded[1], false);
        p[1][2 * h + r] = split_bf16(e[0] - rounded[0], e[1] - rounded[1], false);
      }
#pragma unroll
      for (int x = 0; x < 2; x++) sums.l[r][x] = fmaf(sum[x], worth[r], sums.l[r][x]);
    }
    uint32_t near = ~0u, far = ~0u;  // rows past the last query may hold anything
    if (own) {
      const int last_row = tile.first_in_page + tile.n_queries - 1;
      const auto mask = [&](int token) {
        return (token <= last_row ? 0x0000ffffu : 0u) | (token + 1 <= last_row ? 0xffff0000u : 0u);
      };
      near = mask(tile16 * 16 + 2 * t);
      far = mask(tile16 * 16 + 2 * t + 8);
    }
#pragma unroll
    for (int i = 0; i < S::kTiles; i++) {
      uint4 v = values[i * 32 + lane];
      v.x &= near, v.y &= near, v.z &= far, v.w &= far;
#pragma unroll
      for (int h = 0; h < 2; h++) {  // 8 channels
        float d[2][4] = {};
#pragma unroll
        for (int part = 0; part < 2; part++)
          mma_bf16(d[part], uint4{p[part][0], p[part][1], p[part][2], p[part][3]}, h == 0 ? v.x : v.y,
                   h == 0 ? v.z : v.w);
#pragma unroll
        for (int n = 0; n < 4; n++) {
          float& o = sums.o[4 * (2 * i + h) + n];
          o = fmaf(d[0][n] + d[1][n], worth[n / 2] * static_cast<float>(1 << (2 * S::v_field(i))), o);
        }
      }
    }
    done();
  }

  // ---- merging, as Part of prefill_kernel.cuh
  using Part = HopperShared::Part;
  __device__ float4 own_o(int j) const {
    return {sums.o[4 * j], sums.o[4 * j + 1], sums.o[4 * j + 2], sums.o[4 * j + 3]};
  }
  __device__ void set(Part& part) const {
#pragma unroll
    for (int j = 0; j < 16; j++) part.o[j][lane] = own_o(j);
#pragma unroll
    for (int r = 0; r < 2; r++) part.ml[g + 8 * r] = {sums.m[r], sums.l[r][0]};
    __syncwarp();
  }
  template <class O>
  __device__ void add(Part& part, const float2 (&added)[2], const O& added_o) const {
    const float2 before[2] = {part.ml[g], part.ml[g + 8]};
    const Worth worth[2] = {{before[0].x, added[0].x}, {before[1].x, added[1].x}};
    __syncwarp();  // all lanes of the pair have read it
#pragma unroll
    for (int r = 0; r < 2; r++) part.ml[g + 8 * r] = {worth[r].m, worth[r].sum(before[r].y, added[r].y)};
#pragma unroll
    for (int j = 0; j < 16; j++) {
      const float4 x = part.o[j][lane], y = added_o(j);
      part.o[j][lane] = {worth[0].sum(x.x, y.x), worth[0].sum(x.y, y.y), worth[1].sum(x.z, y.z),
                         worth[1].sum(x.w, y.w)};
    }
    __syncwarp();
  }

  __device__ __forceinline__ void run() {
    prepare();
    const int n_runs = Runs{tile.query_page}.count();
    Part &run_part = shared.run[w], &total = shared.total[w];
#pragma unroll 1
    for (int index = 0; index < n_runs; index++) {
      Part& part = index == 0 ? total : run_part;
      const Run pages(tile, index);
#pragma unroll 1
      for (int share = 0; share < kWarps; share++) {
        sums.start();
#pragma unroll 1
        for (int left = pages.n_packed(share); left > 0; left--) packed_page();
        const int n_full = pages.n_full(share, pages.end), n_to_own = pages.n_full(share, tile.query_page);
#pragma unroll 1
        for (int i = 0; i < n_full; i++) full_tile(share % 4, i == n_to_own);
        sums.close();
        if (share == 0) {
          set(part);
        } else {
          const float2 added[2] = {{sums.m[0], sums.l[0][0]}, {sums.m[1], sums.l[1][0]}};
          add(part, added, [&](int j) { return own_o(j); });
        }
      }
      if (index > 0) {
        const float2 added[2] = {run_part.ml[g], run_part.ml[g + 8]};
        add(total, added, [&](int j) { return run_part.o[j][lane]; });
      }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      if (!here(r)) continue;
      float* to = args.out + pairs.row_of(g + 8 * r) * kD + 2 * t;
      const float l = total.ml[g + 8 * r].y;
#pragma unroll
      for (int j = 0; j < 16; j++) {
        const float4 o = total.o[j][lane];
        *reinterpret_cast<float2*>(to + 8 * j) = {__fdiv_rn(r == 0 ? o.x : o.z, l),
                                                  __fdiv_rn(r == 0 ? o.y : o.w, l)};
      }
    }
  }
};

}  // namespace kv2::cuda::hopper
