// SPDX-License-Identifier: Apache-2.0
// The bodies of the reference backend, one free function per op: scalar, host memory, sums in double, one
// rounding to float at the end. They are written to be read, not to be fast; what a backend must compute is
// what stands here.
#pragma once

#include <span>
#include <vector>

#include "ops/backend.h"

namespace kv2::reference {

/// A matrix as the reference multiplies it: transposed to [n_in, n_out], so that the inner loop runs over
/// outputs and every output's sum still goes through its inputs in index order.
class DenseLinear final : public Linear {
 public:
  DenseLinear(const LinearSource& source, bool bf16);
  int n_in() const override { return n_in_; }
  int n_out() const override { return n_out_; }
  size_t bytes() const override { return (weights_.size() + bias_.size()) * sizeof(float); }

  bool rounds_inputs() const { return bf16_; }
  const float* column(int in) const { return weights_.data() + static_cast<size_t>(in) * n_out_; }  // [n_out]
  std::span<const float> bias() const { return bias_; }

 private:
  int n_in_, n_out_;
  bool bf16_;  // weights are rounded to bf16 here, inputs by linear()
  std::vector<float> weights_, bias_;
};

void embed(const DenseLinear& table, const EmbedParams& p);
void rms_norm(const RmsNormParams& p);
void linear(const DenseLinear& weights, const LinearParams& p);
void rope(const RopeParams& p);
void transform(const TransformParams& p);
void swiglu(const SwigluParams& p);
void append(const AppendParams& p);
void demote(const DemoteParams& p);
void attend(const AttendParams& p);

}  // namespace kv2::reference
