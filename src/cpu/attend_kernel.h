// SPDX-License-Identifier: Apache-2.0
// Attention of a tile of queries over pages that lie expanded in scratch: online softmax with one fixed
// order. Rows of a tile are independent: a row's bits are the same in any tile.
#pragma once

#include <cstddef>

namespace kv2::cpu {

/// Softmax so far of each row of a tile: largest logit, sums of exp in 16 lanes (token t in lane t % 16), and
/// out = Σ exp(logit − max)·v, not yet divided.
struct Partial {
  float* max;  // [n_rows]
  float* sum;  // [n_rows, 16]
  float* out;  // [n_rows, head_dim]

  static size_t floats(int n_rows, int head_dim) { return static_cast<size_t>(n_rows) * (head_dim + 32); }
  static Partial at(float* memory, int n_rows,
                    int head_dim) {  // the three arrays start at multiples of 64 bytes
    const size_t n = static_cast<size_t>(n_rows);
    return {memory + n * (head_dim + 16), memory, memory + n * 16};
  }
};

struct TileView {
  const float* q;  // [n_rows, head_dim]
  float* weights;  // [n_rows, 64] scratch: exp(logit − max) of the page at hand
  int n_rows, head_dim;
  float softmax_scale, soft_cap;
};

/// A head page that will be read after the one at hand, fetched meanwhile; no bytes: nothing.
struct ComingPage {
  const std::byte* at = nullptr;
  size_t bytes = 0;
};

/// What a tile reads of one page: its first rows_per_query rows `visible` tokens, the next ones visible + 1
/// and so on; visible 0: every row reads all 64. `first`: the partial holds nothing yet.
struct PageView {
  int visible, rows_per_query;
  bool first;
};

/// One page, in two halves: keys [d][64] give the weights and the partial's max and sum (out is rescaled),
/// then values [64][d] are added to out.
void attend_keys(const TileView& tile, const PageView& page, const float* keys, const Partial& partial);
void attend_values(const TileView& tile, const PageView& page, const float* values, const Partial& partial);
/// Both halves straight from a full head page (bf16), the same bits: better than expanding it for few rows.
/// Tokens that no row reads may be garbage.
void attend_full(const TileView& tile, const PageView& page, const std::byte* head_page,
                 const ComingPage& coming, const Partial& partial);
/// into = into merged with `from`, which stands for later pages.
void merge(const Partial& into, const Partial& from, int n_rows, int head_dim);
/// out [head_dim] of one row, divided.
void finish(const Partial& partial, int row, int head_dim, float* out);

}  // namespace kv2::cpu
