// SPDX-License-Identifier: Apache-2.0
#include "cuda/linear.h"

#include <algorithm>
#include <vector>

#include "base/float16.h"
#include "cuda/cuda_check.h"
#include "cuda/kernels.h"

namespace kv2::cuda {
namespace {

constexpr size_t kWorkspace = size_t{32} << 20;
/// The number of rows that algorithms are chosen for: between a decode batch and a chunk of a prompt.
constexpr int kRowsOfChoice = 64;

/// Descriptors of one product, freed at the end of the scope. Column-major as cuBLAS sees it:
/// out [n_out, rows] = weightsᵀ [padded, n_out]ᵀ · in [padded, rows].
struct Product {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t weights = nullptr, in = nullptr, out = nullptr;

  Product(const DenseLinear& w, int n_rows) {
    const cudaDataType_t type = w.bf16() ? CUDA_R_16BF : CUDA_R_32F;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    if (w.bias()) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, w.bias());
    }
    check(cublasLtMatrixLayoutCreate(&weights, type, w.padded(), w.n_out(), w.padded()), "layout");
    check(cublasLtMatrixLayoutCreate(&in, type, w.padded(), n_rows, w.padded()), "layout");
    check(cublasLtMatrixLayoutCreate(&out, CUDA_R_32F, w.n_out(), n_rows, w.n_out()), "layout");
  }
  ~Product() {
    cublasLtMatrixLayoutDestroy(out);
    cublasLtMatrixLayoutDestroy(in);
    cublasLtMatrixLayoutDestroy(weights);
    cublasLtMatmulDescDestroy(operation);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    check(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)), "cublasLt attribute");
  }
};

template <class T>
void prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
        "cublasLt preference");
}

bool splits_k(const cublasLtMatmulAlgo_t& algorithm) {
  int32_t parts = 1;
  size_t written = 0;
  check(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                             sizeof(parts), &written),
        "cublasLtMatmulAlgoConfigGetAttribute");
  return parts > 1;
}

}  // namespace

DenseLinear::DenseLinear(const LinearSource& source, bool bf16)
    : n_in_(source.n_in), n_out_(source.n_out), padded_((source.n_in + 7) / 8 * 8), bf16_(bf16) {
  KV2_CHECK(n_in_ > 0 && n_out_ > 0 && source.fill, "a linear of {} by {}", n_in_, n_out_);
  KV2_CHECK(source.bias.empty() || source.bias.size() == static_cast<size_t>(n_out_),
            "bias of {} for {} outputs", source.bias.size(), n_out_);
  const size_t row_bytes = static_cast<size_t>(padded_) * (bf16 ? sizeof(kv2::bf16) : sizeof(float));
  data_ = weights_.reserve(row_bytes * n_out_);
  const int tile = std::clamp(static_cast<int>((size_t{16} << 20) / row_bytes), 1, n_out_);
  std::vector<float> rows(static_cast<size_t>(tile) * n_in_);
  std::vector<std::byte> packed(row_bytes * tile, std::byte{0});
  for (int row0 = 0; row0 < n_out_; row0 += tile) {
    const int n = std::min(tile, n_out_ - row0);
    source.fill(row0, n, rows.data());
    for (int r = 0; r < n; r++) {
      const float* from = rows.data() + static_cast<size_t>(r) * n_in_;
      std::byte* to = packed.data() + row_bytes * r;
      if (bf16)
        std::transform(from, from + n_in_, reinterpret_cast<kv2::bf16*>(to),
                       [](float x) { return to_bf16(x); });
      else
        std::copy(from, from + n_in_, reinterpret_cast<float*>(to));
    }
    check(cudaMemcpy(static_cast<std::byte*>(data_) + row_bytes * row0, packed.data(), row_bytes * n,
                     cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }
  if (!source.bias.empty()) {
    bias_data_ = static_cast<float*>(bias_.reserve(source.bias.size_bytes()));
    check(cudaMemcpy(bias_data_, source.bias.data(), source.bias.size_bytes(), cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }
  // cudaMemcpy returns when pageable memory has been read; the backend's stream does not wait for the rest.
  check(cudaDeviceSynchronize(), "upload of weights");
}

Linears::Linears(cudaStream_t stream, bool bf16) : stream_(stream), bf16_(bf16) {
  check(cublasLtCreate(&handle_), "cublasLtCreate");
  workspace_.reserve(kWorkspace);
}

Linears::~Linears() {
  cublasLtDestroy(handle_);
}

size_t Linears::scratch_bytes(int n_rows, int max_width) const {
  return kWorkspace + static_cast<size_t>(n_rows) * ((max_width + 7) / 8 * 8) * (bf16_ ? 2 : 4);
}

const cublasLtMatmulAlgo_t& Linears::algorithm(const DenseLinear& weights, cublasLtMatmulDesc_t operation) {
  const auto [at, is_new] =
      algorithms_.try_emplace(Shape{weights.n_out(), weights.padded(), weights.bias() != nullptr});
  if (!is_new) return at->second;
  const Product choice(weights, kRowsOfChoice);
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  const uint32_t out_alignment = weights.n_out() % 4 == 0 ? 16 : 4;
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out_alignment);
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out_alignment);
  cublasLtMatmulHeuristicResult_t found[32];
  int n_found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, choice.operation, choice.weights, choice.in, choice.out,
                                     choice.out, preference, std::size(found), found, &n_found);
  cublasLtMatmulPreferenceDestroy(preference);
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  for (int i = 0; i < n_found; i++) {
    if (splits_k(found[i].algo)) continue;
    return at->second = found[i].algo;
  }
  algorithms_.erase(at);
  throw_error(ErrorCode::Unsupported, "cuBLAS has no algorithm without split-K for a linear of {} by {}",
              weights.n_in(), weights.n_out());
}

void Linears::multiply(const DenseLinear& weights, const LinearParams& p) {
  if (p.n_rows == 0) return;
  const size_t element = weights.bf16() ? 2 : 4;
  const void* in = p.in;
  if (weights.bf16() || weights.padded() != weights.n_in()) {
    void* rounded = inputs_.reserve(static_cast<size_t>(p.n_rows) * weights.padded() * element);
    launch_round_rows(p.in, rounded, weights.bf16(), p.n_rows, weights.n_in(), weights.padded(), stream_);
    check_launch("round_rows");
    in = rounded;
  }
  const Product product(weights, p.n_rows);
  const float one = 1.0f, beta = p.accumulate == Accumulate::Yes ? 1.0f : 0.0f;
  check(cublasLtMatmul(handle_, product.operation, &one, weights.weights(), product.weights, in, product.in,
                       &beta, p.out, product.out, p.out, product.out, &algorithm(weights, product.operation),
                       workspace_.reserve(kWorkspace), kWorkspace, stream_),
        "cublasLtMatmul");
}

}  // namespace kv2::cuda
