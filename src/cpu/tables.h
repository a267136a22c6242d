// SPDX-License-Identifier: Apache-2.0
// Two tables that rows are looked up in: token embeddings and the angles of rope.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "base/threads.h"
#include "cpu/elementwise.h"
#include "cpu/scratch.h"
#include "ops/backend.h"

namespace kv2::cpu {

class Embedding final : public Linear {
 public:
  /// on_demand: no table; rows are decoded from the file when they are asked for.
  Embedding(const LinearSource& source, bool bf16, bool on_demand, HugePages huge_pages)
      : n_in_(source.n_in),
        n_out_(source.n_out),
        bf16_(bf16),
        table_(on_demand ? 0 : static_cast<size_t>(source.n_in) * source.n_out * (bf16 ? 2 : 4), huge_pages) {
    if (on_demand) {
      fill_ = source.fill;
      return;
    }
    const size_t width = static_cast<size_t>(n_in_);
    if (!bf16) {
      source.fill(0, n_out_, table_.as<float>());
      return;
    }
    const int step = 256;
    std::vector<float> rows(step * width);
    for (int row = 0; row < n_out_; row += step) {
      const int n = std::min(step, n_out_ - row);
      source.fill(row, n, rows.data());
      to_bf16_row(rows.data(), n * width, table_.as<kv2::bf16>() + row * width);
    }
  }
  int n_in() const override { return n_in_; }
  int n_out() const override { return n_out_; }
  size_t bytes() const override { return table_.bytes(); }

  void read(int token, float* out) const {
    if (fill_) return fill_(token, 1, out);
    const size_t width = static_cast<size_t>(n_in_), at = static_cast<size_t>(token) * width;
    if (bf16_)
      from_bf16_row(table_.as<kv2::bf16>() + at, width, out);
    else
      std::memcpy(out, table_.as<float>() + at, width * sizeof(float));
  }

 private:
  int n_in_, n_out_;
  bool bf16_;
  AlignedBuffer table_;
  std::function<void(int, int, float*)> fill_;
};

/// cos and sin of the positions of a batch: the same for q and k of all layers, so computed once per batch.
class RopeTable {
 public:
  void prepare(ThreadTeam& team, const RopeParams& p) {
    const size_t half = static_cast<size_t>(p.head_dim / 2);
    const std::span<const int64_t> positions(p.positions, static_cast<size_t>(p.n_rows));
    const std::span<const float> inv_frequency(p.inv_frequency, half);
    if (std::ranges::equal(positions, positions_) && std::ranges::equal(inv_frequency, inv_frequency_))
      return;
    positions_.assign(positions.begin(), positions.end());
    inv_frequency_.assign(inv_frequency.begin(), inv_frequency.end());
    table_.resize(positions.size() * half * 2);
    team.run((p.n_rows + 7) / 8, [&](int64_t i, int) {
      for (size_t r = static_cast<size_t>(i) * 8;
           r < std::min(positions.size(), static_cast<size_t>(i) * 8 + 8); r++)
        rope_angles(positions_[r], inv_frequency_.data(), p.head_dim, &table_[r * half * 2],
                    &table_[r * half * 2 + half]);
    });
  }
  const float* cosines(int row) const {
    return &table_[static_cast<size_t>(row) * inv_frequency_.size() * 2];
  }
  const float* sines(int row) const { return cosines(row) + inv_frequency_.size(); }

 private:
  std::vector<int64_t> positions_;
  std::vector<float> inv_frequency_, table_;
};

}  // namespace kv2::cpu
