// SPDX-License-Identifier: Apache-2.0
// Linears. Weights that a file codes go to coded_linear.h (Auto); all others through oneDNN: single-threaded
// matmul primitives on tiles of the output, called from the thread team. Weights are packed once, tile by
// tile.
//
// Invariant: a row's result has the same bits for any number of rows, any chunking and any number of threads.
// Tiles have fixed shapes; which row counts may be mixed is decided by comparing bits when a shape is first
// used (TileShape), since oneDNN picks a kernel per shape: with AMX, one row alone runs on another unit and
// differs in the last bit.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "cpu/coded_linear.h"
#include "cpu/scratch.h"
#include "cpu/weight_memory.h"
#include "ops/backend.h"

namespace kv2::cpu {

struct OneDnn;    // engine, streams
class TileShape;  // primitives of one (inputs, tile width)

class PackedLinear final : public Linear {
 public:
  int n_in() const override { return n_in_; }
  int n_out() const override { return n_out_; }
  size_t bytes() const override { return weights_bytes_ + bias_.size() * sizeof(float); }

 private:
  friend class LinearEngine;
  int n_in_ = 0, n_out_ = 0;
  size_t tile_bytes_ = 0;
  TileShape* shape_ = nullptr;
  std::shared_ptr<std::byte> weights_;  // [n_tiles] packed tiles
  size_t weights_bytes_ = 0;
  std::vector<float> bias_;
};

class LinearEngine {
 public:
  /// Throws Unsupported when precision is Bf16 and oneDNN has no bf16 matmul for this machine.
  LinearEngine(ThreadTeam& team, LinearPrecision precision, HugePages huge_pages);
  ~LinearEngine();

  bool uses_bf16() const { return bf16_; }
  /// Weights that a file codes stay in their codes (Auto).
  bool multiplies_codes() const { return codes_; }
  std::string describe() const;

  std::unique_ptr<Linear> pack(const LinearSource& source);
  void multiply(const Linear& weights, const LinearParams& p);
  size_t scratch_bytes(int n_rows, int max_width) const;
  /// Row counts of the tiles used for these weights, ascending; for tests.
  const std::vector<int>& row_tiles(const Linear& weights) const;

 private:
  TileShape& shape_for(int n_in, int n_out);
  void prepare_rows(const LinearParams& p, int n_in, int padded_in, int padded_rows);

  ThreadTeam& team_;
  const HugePages huge_pages_;
  bool bf16_ = false, codes_ = false;
  CodedLinears coded_;
  WeightMemory memory_;
  std::unique_ptr<OneDnn> dnn_;
  std::map<std::pair<int, int>, std::unique_ptr<TileShape>> shapes_;
  AlignedBuffer rows_;  // inputs as the primitives read them: [padded rows, padded n_in]; or as CodedRows
};

}  // namespace kv2::cpu
