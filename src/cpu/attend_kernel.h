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
  int n_rows, head_dim;
  float softmax_scale, soft_cap;
};

/// One page: k [d][64], v [64][d]. A tile's first rows_per_query rows read visible tokens, the next ones
/// visible + 1 and so on; visible 0: every row reads all 64. `first`: the partial holds nothing yet.
struct PageView {
  const float *k, *v;
  int visible, rows_per_query;
  bool first;
};

void attend_page(const TileView& tile, const PageView& page, const Partial& partial);
/// into = into merged with `from`, which stands for later pages.
void merge(const Partial& into, const Partial& from, int n_rows, int head_dim);
/// out [head_dim] of one row, divided.
void finish(const Partial& partial, int row, int head_dim, float* out);

}  // namespace kv2::cpu
