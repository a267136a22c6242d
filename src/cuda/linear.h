// SPDX-License-Identifier: Apache-2.0
// Linears of the CUDA backend: weights in bf16 (or f32), rows padded to 16 bytes, multiplied by cuBLASLt with
// f32 accumulation and output, or by few_rows.cu for up to 16 rows. All of them are without
// split-K and give a row the same bits (compared once for every shape of weights, on those weights), so that
// each number of rows gets what is fastest for it: a row's bits must not depend on the batch it comes in.
#pragma once

#include <cublasLt.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "cuda/device_memory.h"
#include "cuda/kernels.h"
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

/// What multiplies by weights of one shape. Chosen by timing among what gives the same bits.
struct LinearChoice {
  static constexpr int kFew = 16, kSome = 64;  // rows at most
  cublasLtMatmulAlgo_t few, some, many;
  bool own_few = false;  // few_rows.cu instead
};

class Linears {
 public:
  Linears(cudaStream_t stream, bool bf16, int n_multiprocessors);
  ~Linears();
  Linears(const Linears&) = delete;
  Linears& operator=(const Linears&) = delete;

  bool bf16() const { return bf16_; }
  /// Chooses algorithms now, by timing them on these weights; it would happen at the first product.
  void prepare(const DenseLinear& weights);
  /// Where the kernel that makes the inputs of a linear may leave them rounded; memory is nullptr where that
  /// is of no use. Good until the next product or the next call.
  LinearInputs inputs_for(int n_rows, int n_in);
  /// `rounded`: what inputs_for said, where p.in has been left there; else nullptr.
  void multiply(const DenseLinear& weights, const LinearParams& p, const LinearInputs* rounded);
  size_t scratch_bytes(int n_rows, int max_width) const;
  /// Where rounded inputs are now.
  const void* inputs() const { return inputs_.data(); }

 private:
  using Shape = std::tuple<int, int, bool>;  // n_out, padded n_in, bias
  const LinearChoice& choice(const DenseLinear& weights);

  cudaStream_t stream_;
  bool bf16_;
  int n_multiprocessors_;
  cublasLtHandle_t handle_ = nullptr;
  Buffer inputs_, workspace_;
  std::map<Shape, LinearChoice> choices_;
};

}  // namespace kv2::cuda
