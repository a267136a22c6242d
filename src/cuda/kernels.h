// SPDX-License-Identifier: Apache-2.0
// Launchers of all kernels: plain pointers and numbers on the device, and a stream. No launcher allocates,
// synchronises or throws; the caller checks cudaGetLastError. Only this header stands between .cpp and .cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/packed_side.h"

namespace kv2::cuda {

/// False where this build holds no code that the current device can run.
bool has_code_for_this_device();

/// From pinned host memory, both 16-byte aligned, `bytes` a multiple of 16: in a graph sooner there than a
/// copy.
void launch_copy_here(const void* host, void* device, size_t bytes, cudaStream_t stream);

// ---- rows
void launch_embed(const void* table, bool is_bf16, size_t row_stride, int width, const int32_t* tokens,
                  float* out, int n_rows, cudaStream_t stream);
/// A linear's inputs, rounded to bf16: rows [n_rows, padded], or B fragments of `columns` rows for
/// launch_few_rows (linear_inputs.cuh). nullptr: not wanted.
struct LinearInputs {
  void* memory = nullptr;
  int padded = 0, columns = 0;
};
void launch_rms_norm(const float* in, const float* weight, float* out, int n_rows, int width, float epsilon,
                     const LinearInputs& rounded, cudaStream_t stream);
/// Largest values: key 0 where a row has none, else its index is 2^32 - 1 - (the key's lower half).
void launch_arg_max(const float* rows, int n_rows, int width, uint64_t* keys, cudaStream_t stream);
/// 16 bytes at a time; a last part of fewer is not read.
void launch_read_all(const void* memory, size_t bytes, uint32_t* out, cudaStream_t stream);
/// x [n_rows, n_in] -> f32 [n_rows, padded], zeros past n_in.
void launch_pad_rows(const float* x, float* out, int n_rows, int n_in, int padded, cudaStream_t stream);
/// The same to bf16, in either form; x is float, or bf16 already.
void launch_round_rows(const void* x, bool is_bf16, const LinearInputs& out, int n_rows, int n_in,
                       cudaStream_t stream);
/// Linears of up to 16 rows whose inputs are a multiple of 64: out = W·x + bias, or out + that.
struct FewRows {
  const __nv_bfloat16* weights;  // [n_out, n_in]
  const float* bias;
  const unsigned char* x;  // LinearInputs in fragments
  float* out;
  int n_in, n_out, n_rows;
  bool accumulate;
};
bool few_rows_fit(int n_rows, int n_in);
void launch_few_rows(const FewRows& p, int n_multiprocessors, cudaStream_t stream);
void launch_rope(float* x, const int64_t* positions, const float* inv_frequency, int n_rows, int n_heads,
                 int head_dim, bool adjacent, cudaStream_t stream);
void launch_swiglu(const float* gate, const float* up, float* out, int n_rows, int width, size_t stride,
                   const LinearInputs& rounded, cudaStream_t stream);
/// out = (in - mean)·matrix + add, per head; mean and add may be nullptr.
struct TransformRows {
  const float* in;
  float* out;
  const float *matrix, *mean, *add;
  int n_rows, n_heads, n_kv_heads, head_dim;
  bool transpose;
};
void launch_transform(const TransformRows& p, cudaStream_t stream);
/// The same for few rows and another `out` than `in`, with the sums left rounded, too.
bool transform_few_fits(const TransformRows& p);
void launch_transform_few(const TransformRows& p, const LinearInputs& rounded, cudaStream_t stream);

// ---- pages
/// The pages of one layer: head page of (slot, kv_head) = base + slot·page_bytes + kv_head·head_bytes.
struct Pool {
  std::byte* base = nullptr;
  size_t page_bytes = 0, head_bytes = 0;
#ifdef __CUDACC__
  __device__ __forceinline__ std::byte* head(int32_t slot, int kv_head) const {
    return base + static_cast<size_t>(slot) * page_bytes + static_cast<size_t>(kv_head) * head_bytes;
  }
#endif
};

struct AppendRow {
  const int32_t* full_pages;
  int64_t pos;
};
void launch_append(const float* k, const float* v, Pool full, const AppendRow* rows, int n_rows,
                   int n_kv_heads, int head_dim, cudaStream_t stream);

/// The product with W_qkv of some rows -> q in the stored basis, and K and V in their pages.
struct HeadRows {
  struct Side {
    const float *norm, *matrix, *mean;  // or nullptr; of q: K's decode matrix, applied transposed
  };
  const float* qkv;  // [n_rows, q | k | v], row stride `stride`
  float* q_out;      // [n_rows, n_heads, head_dim]
  const AppendRow* rows;
  const float2* angles;  // [n_rows, head_dim / 2] cos, sin
  Side q, k, v;
  Pool full;
  int n_rows, stride, n_heads, n_kv_heads, head_dim;
  float epsilon;
  bool adjacent;  // pairs of RoPE
  // the launcher's: rows of a block of keys or values and of queries, blocks of each
  int rows_each, q_rows_each, blocks, q_blocks;
};
bool heads_fit(int n_rows, int head_dim);
/// Of all rows: in double, which every layer would pay again. angles [n_rows, half] cos, sin.
void launch_rope_angles(const AppendRow* rows, const float* inv_frequency, float2* angles, int n_rows,
                        int half, cudaStream_t stream);
void launch_heads(HeadRows p, cudaStream_t stream);

struct DemotePage {
  int32_t full, packed;
};
/// Coder `round`; `sides` 1: K alone, 2: V alone, 3: both.
void launch_demote(Pool full, Pool packed, const DemotePage* pages, int n_pages, int n_kv_heads, int head_dim,
                   int group, int clip_k, int clip_v, int sides, cudaStream_t stream);
/// Coder `feedback` (quant/feedback) for K or V: tables are device memory of all KV heads.
struct FeedbackCoder {
  const float *f, *weight, *ones;
  float steps[8];
  int n_steps, refits;
  bool is_v;
};
void launch_demote_feedback(Pool full, Pool packed, const DemotePage* pages, int n_pages, int n_kv_heads,
                            int head_dim, int group, const FeedbackCoder& coder, cudaStream_t stream);

/// Coder `round` for one side of pages in other formats than int2.
void launch_demote_side(Pool full, std::byte* packed, size_t page_bytes, const DemotePage* pages, int n_pages,
                        const PackedSide& side, int n_kv_heads, int head_dim, int clip_index, bool is_v,
                        cudaStream_t stream);

/// Canonical pages of keys per channel, just coded, into the order of channel_order.h: both sides of a layer.
void launch_order_channels(std::byte* packed, size_t page_bytes, const DemotePage* pages, int n_pages,
                           const PackedSide& k, const PackedSide& v, int n_kv_heads, int head_dim,
                           cudaStream_t stream);

// ---- attention
/// Queries of one sequence that lie in one page and read every page in the same form: n_queries × n_heads
/// pairs (query, head of the KV group), all with the same KV head.
struct AttendTile {
  int32_t first_row, n_queries;
  int32_t first_head, n_heads;  // within the KV group
  int32_t query_page, first_in_page;
  int32_t packed_begin, packed_end;  // pages read packed
  const int32_t* full_pages;
  const int32_t* packed_pages;
};

#ifdef __CUDACC__
#define KV2_RUNS __host__ __device__ constexpr
#else
#define KV2_RUNS constexpr
#endif
inline constexpr int kMinRunPages = 32, kMaxRunPages = 64, kShortRuns = 512, kLongContext = 1024;
/// Runs of pages, where a partial softmax begins and ends, are a function of the queries' page alone. Those
/// of queries before page kLongContext have kMinRunPages up to page kShortRuns, so that a short context fills
/// more of a GPU; all others have kMaxRunPages, as two short ones take longer than a long one, but for the
/// last one: the aligned kMaxRunPages that hold the queries' page are in halves, because full pages, which
/// are at the end, take as long as several packed ones.
struct Runs {
  int query_page;

  KV2_RUNS int of(int page) const {
    constexpr int kShort = kMinRunPages, kLong = kMaxRunPages;
    if (page < short_pages()) return page / kShort;
    return n_short() - n_short() * kShort / kLong + page / kLong +
           (page / kLong == query_page / kLong && page % kLong >= kShort);
  }
  KV2_RUNS int count() const { return of(query_page) + 1; }
  KV2_RUNS int begin(int run) const {
    constexpr int kShort = kMinRunPages, kLong = kMaxRunPages;
    if (run < n_short()) return kShort * run;
    const int cell = kLong * (run - n_short()) + short_pages(), last = query_page / kLong * kLong + kShort;
    return cell < last ? cell : last;
  }
  KV2_RUNS int end(int run) const { return run + 1 < count() ? begin(run + 1) : query_page + 1; }

 private:
  KV2_RUNS int short_pages() const { return query_page < kLongContext ? kShortRuns : 0; }
  KV2_RUNS int n_short() const { return short_pages() / kMinRunPages; }
};

#undef KV2_RUNS

/// Runs of one tile and KV head that a block goes through one after the other.
struct alignas(16) AttendSegment {
  AttendTile tile;
  int32_t owner;  // tile · n_kv_heads + kv_head
  int32_t kv_head;
  int32_t first_run, end_run;
  int32_t next;  // segment of the same block, or -1
};

/// Where a page has many queries, a block of prefill_kernel.cuh takes this many tiles of it, with the pages
/// of the first; those at the end may have no queries.
inline constexpr int kPrefillTiles = 8;
/// Query and head pairs of such a tile at most.
constexpr int prefill_pairs(int head_dim) {
  return head_dim <= 128 ? 16 : 8;
}

/// Which kernel takes them, as all of them give the same bits: Full where no tile reads a packed page, Hopper
/// on compute capability 9.0 for head_dim 128.
enum class PrefillKernel { None, Full, Packed, Hopper };

struct AttendArgs {
  const float* q;
  float* out;
  const AttendTile* tiles;
  int n_tiles, n_kv_heads, q_per_kv, head_dim, group;
  Pool full, packed;
  float softmax_scale, soft_cap;
  // [n_blocks + n_tiles · n_kv_heads]. What block i does begins at segments[i]; end_run 0: nothing. Where a
  // tile's runs are in several segments, the last block to end one merges all runs in their order. The bits
  // are the same however they are cut.
  const AttendSegment* segments;
  int n_blocks;
  int max_runs;        // of a tile
  bool overlaps;       // begin while the kernel before is running: it writes q and the queries' rows alone
  float* partials;     // [n_tiles, n_kv_heads, max_runs, pairs, head_dim + 2]; nullptr where no tile is cut
  uint32_t* arrivals;  // [n_tiles, n_kv_heads], zero before and after
  // besides: [n_prefill_blocks, kPrefillTiles] with prefill_pairs each, no soft cap
  const AttendTile* prefill_tiles;
  int n_prefill_blocks;
  PrefillKernel prefill_kernel;
  // Results are left there, too: by kernels of launch_attend and launch_attend_channels without
  // prefill_tiles.
  LinearInputs rounded = {};
  // of launch_attend_channels: `packed` is a layer's part, here its heads begin; norms are the first 256
  // bytes
  struct {
    int32_t k_heads, v_heads;
    bool norms;
  } channels = {};
};
/// Blocks of attend_kernel that a multiprocessor holds, by its shared memory.
constexpr int attend_blocks(int head_dim, int pairs) {
  return head_dim <= 96 || (head_dim <= 128 && pairs <= 4) ? 2 : 1;
}
/// `pairs`: query and head pairs of one of `tiles` at most: 4 or 8; 4 with a soft cap.
void launch_attend(const AttendArgs& args, int pairs, cudaStream_t stream);
/// The same for packed pages in the order of channel_order.h; no prefill_tiles.
void launch_attend_channels(const AttendArgs& args, int pairs, cudaStream_t stream);
/// Any head_dim and group, one block per query and head, f32 arithmetic: right, not fast.
void launch_attend_generic(const AttendArgs& args, cudaStream_t stream);
/// Packed pages in other formats than int2: `packed` is the whole pool, without a layer's offset. Tiles have
/// this many query and head pairs at most, always: the order of a sum over lanes goes with it.
inline constexpr int kFormatPairs = 8;
inline constexpr int kFormatBlocks = 5;  // that a multiprocessor holds, head_dim 128
void launch_attend_formats(const AttendArgs& args, const PackedSide& k, const PackedSide& v,
                           cudaStream_t stream);

}  // namespace kv2::cuda
