// SPDX-License-Identifier: Apache-2.0
// One weight tile's oneDNN primitives: out [rows, width] = in [rows, depth]·tile, for a few fixed row counts
// that were checked to give the same bits for a row, wherever in a tile it stands. Private to this folder;
// the only oneDNN code.
#pragma once

#include <dnnl.hpp>

#include <string>
#include <unordered_map>
#include <vector>

#include "cpu/scratch.h"

namespace kv2::cpu {

/// oneDNN may be built on OpenMP, whose regions would start a second team inside ours. While one of these
/// lives, OpenMP runs single-threaded on this thread; kv2 itself does not link OpenMP (the functions are
/// looked up at run time).
class OneOpenMpThread {
 public:
  OneOpenMpThread();
  ~OneOpenMpThread();
  OneOpenMpThread(const OneOpenMpThread&) = delete;
  OneOpenMpThread& operator=(const OneOpenMpThread&) = delete;

 private:
  int before_ = 0;
};

struct OneDnn {
  explicit OneDnn(int n_workers);
  dnnl::engine engine;
  std::vector<dnnl::stream> streams;  // one per worker
};

class TileShape {
 public:
  /// depth and width in elements; throws Unsupported when oneDNN has no matmul for them.
  TileShape(OneDnn& dnn, bool bf16, int depth, int width, HugePages huge_pages);

  int depth() const { return depth_; }
  int width() const { return width_; }
  size_t tile_bytes() const { return tile_bytes_; }
  const std::string& implementation() const { return implementation_; }  // of the largest row count
  const std::vector<int>& row_counts() const { return row_counts_; }     // ascending

  /// plain [width, depth] (bf16 or float, a row per output) -> packed [tile_bytes()].
  void pack(int worker, const void* plain, void* packed);
  /// in [rows, depth] bf16 or float, out [rows, width]; row_counts()[count] rows.
  void multiply(int worker, size_t count, const void* in, const void* packed, float* out);

 private:
  struct Call {  // one primitive with one worker's memory objects
    dnnl::memory in, weights, out;
    std::unordered_map<int, dnnl::memory> arguments;
  };
  struct Candidate {
    int rows = 0;
    std::string implementation;
    dnnl::matmul primitive;
    std::vector<Call> calls;  // [worker]
  };
  bool add_candidate(int rows);
  void keep_equal_candidates(HugePages huge_pages);
  std::vector<float> run_rows(Candidate& c, const void* in, const void* packed, int first, int n);

  OneDnn& dnn_;
  bool bf16_;
  int depth_, width_;
  size_t tile_bytes_ = 0;
  std::string implementation_;
  dnnl::memory::desc packed_;
  dnnl::reorder reorder_;
  std::vector<Candidate> candidates_;
  std::vector<int> row_counts_;
  WorkerScratch scratchpads_;
};

/// Whether oneDNN has its own bf16 kernel here (AVX512-BF16 or AMX), not one that emulates it.
bool has_fast_bf16(OneDnn& dnn);

}  // namespace kv2::cpu
