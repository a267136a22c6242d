// SPDX-License-Identifier: Apache-2.0
// Linears whose weights stay in their file's codes: packing into strips, and the work of a product cut into
// tasks. One family of kernels for one row and for five hundred: a row's bits never depend on the others.
#pragma once

#include <memory>
#include <vector>

#include "base/threads.h"
#include "cpu/coded_kernel.h"
#include "cpu/scratch.h"
#include "cpu/weight_memory.h"
#include "ops/backend.h"

namespace kv2::cpu {

class CodedLinear final : public Linear {
 public:
  int n_in() const override { return shape_.n_in; }
  int n_out() const override { return shape_.n_out; }
  size_t bytes() const override { return strips_bytes() + bias_.size() * sizeof(float); }
  const StripShape& shape() const { return shape_; }

 private:
  friend class CodedLinears;
  size_t strips_bytes() const { return shape_.strip_bytes() * static_cast<size_t>(shape_.n_strips()); }

  StripShape shape_;
  std::shared_ptr<std::byte> strips_;
  std::vector<float> bias_;
};

class CodedLinears {
 public:
  CodedLinears(ThreadTeam& team, HugePages huge_pages) : team_(team), memory_(huge_pages) {}

  /// source.coded must have codes.
  std::unique_ptr<Linear> pack(const LinearSource& source);
  /// scratch grows to scratch_bytes of the rows.
  void multiply(const CodedLinear& weights, const LinearParams& p, AlignedBuffer& scratch);
  static size_t scratch_bytes(int n_rows, int max_width);

 private:
  ThreadTeam& team_;
  WeightMemory memory_;
};

}  // namespace kv2::cpu
