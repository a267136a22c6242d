// SPDX-License-Identifier: Apache-2.0
// Linears of the CUDA backend: weights in bf16 (or f32), rows padded to 16 bytes, multiplied by cuBLASLt with
// f32 accumulation and output. One algorithm per shape of weights, without split-K, chosen once by timing and
// used for every number of rows: a row's bits must not depend on the batch it comes in.
#pragma once

#include <cublasLt.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "cuda/device_memory.h"
#include "ops/backend.h"

namespace kv2::cuda {

/// Weights on the device; also an embedding table.
class DenseLinear final : public Linear {
 public:
  DenseLinear(const LinearSource& source, bool bf16);
  int n_in() const override { return n_in_; }
  int n_out() const override { return n_out_; }
  size_t bytes() const override { return weights_.bytes() + bias_.bytes(); }

  bool bf16() const { return bf16_; }
  int padded() const { return padded_; }
  const void* weights() const { return data_; }
  const float* bias() const { return bias_data_; }

 private:
  int n_in_, n_out_, padded_;
  bool bf16_;
  Buffer weights_, bias_;
  void* data_ = nullptr;
  float* bias_data_ = nullptr;
};

class Linears {
 public:
  Linears(cudaStream_t stream, bool bf16);
  ~Linears();
  Linears(const Linears&) = delete;
  Linears& operator=(const Linears&) = delete;

  bool bf16() const { return bf16_; }
  /// Chooses the algorithm now, by timing it on these weights; it would happen at the first product.
  void prepare(const DenseLinear& weights);
  void multiply(const DenseLinear& weights, const LinearParams& p);
  size_t scratch_bytes(int n_rows, int max_width) const;
  /// Where rounded inputs are now.
  const void* inputs() const { return inputs_.data(); }

 private:
  using Shape = std::tuple<int, int, bool>;  // n_out, padded n_in, bias
  const cublasLtMatmulAlgo_t& algorithm(const DenseLinear& weights);

  cudaStream_t stream_;
  bool bf16_;
  cublasLtHandle_t handle_ = nullptr;
  Buffer inputs_, workspace_;
  std::map<Shape, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace kv2::cuda
