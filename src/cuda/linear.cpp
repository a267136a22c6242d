// SPDX-License-Identifier: Apache-2.0
#include "cuda/linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/float16.h"
#include "cuda/cuda_check.h"
#include "cuda/kernels.h"

namespace kv2::cuda {
namespace {

constexpr size_t kWorkspace = size_t{32} << 20;

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

/// Picks one algorithm for every number of rows: without split-K, a row's bits the same alone and in a large
/// batch, and fast at both ends. What cuBLAS recommends for one size can be 20 times slower at another.
class AlgorithmChoice {
 public:
  AlgorithmChoice(cublasLtHandle_t handle, cudaStream_t stream, void* workspace, const DenseLinear& weights)
      : handle_(handle), stream_(stream), workspace_(workspace), weights_(weights) {
    large_ = static_cast<int>(std::clamp<size_t>(kMaxOutputs / weights.n_out(), 64, 1024));
    large_ = std::min(large_, weights.n_out());  // rows of the weights serve as inputs
    out_.reserve(sizeof(float) * large_ * static_cast<size_t>(weights.n_out()));
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~AlgorithmChoice() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  AlgorithmChoice(const AlgorithmChoice&) = delete;
  AlgorithmChoice& operator=(const AlgorithmChoice&) = delete;

  cublasLtMatmulAlgo_t best() {
    struct Found {
      cublasLtMatmulAlgo_t algorithm;
      float small, large;  // ms
    };
    std::vector<Found> found;
    for (const cublasLtMatmulAlgo_t& a : candidates()) {
      Found f{a, 0, 0};
      if (time(a, 1, kRepeats, &f.small) && time(a, large_, 2, &f.large) && same_bits(a)) found.push_back(f);
    }
    if (found.empty())
      throw_error(
          ErrorCode::Unsupported,
          "cuBLAS has no algorithm for a linear of {} by {} that gives a row the same bits in every batch",
          weights_.n_in(), weights_.n_out());
    float small = INFINITY, large = INFINITY, least = INFINITY;
    for (const Found& f : found) small = std::min(small, f.small), large = std::min(large, f.large);
    const auto cost = [&](const Found& f) { return f.small / small + f.large / large; };
    for (const Found& f : found) least = std::min(least, cost(f));
    // The first that is nearly as good: so that one machine mostly chooses the same.
    for (const Found& f : found)
      if (cost(f) <= 1.1f * least) return f.algorithm;
    return found.front().algorithm;
  }

 private:
  static constexpr size_t kMaxOutputs = size_t{32} << 20;
  static constexpr int kRepeats = 4, kRow = 3;  // kRow: whose bits are compared

  /// What cuBLAS recommends for few, some and many rows, in that order.
  std::vector<cublasLtMatmulAlgo_t> candidates() {
    std::vector<cublasLtMatmulAlgo_t> all;
    for (const int rows : {1, 64, large_}) {
      const Product product(weights_, rows);
      cublasLtMatmulPreference_t preference = nullptr;
      check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
      prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
      prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
             uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
      const uint32_t out_alignment = weights_.n_out() % 4 == 0 ? 16 : 4;
      prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out_alignment);
      prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out_alignment);
      cublasLtMatmulHeuristicResult_t found[16];
      int n_found = 0;
      const cublasStatus_t status =
          cublasLtMatmulAlgoGetHeuristic(handle_, product.operation, product.weights, product.in, product.out,
                                         product.out, preference, std::size(found), found, &n_found);
      cublasLtMatmulPreferenceDestroy(preference);
      if (status != CUBLAS_STATUS_SUCCESS) continue;
      for (int i = 0; i < n_found; i++) {
        const auto same = [&](const cublasLtMatmulAlgo_t& a) {
          return std::memcmp(&a, &found[i].algo, sizeof(a)) == 0;
        };
        if (!splits_k(found[i].algo) && std::none_of(all.begin(), all.end(), same))
          all.push_back(found[i].algo);
      }
    }
    return all;
  }

  bool multiply(const cublasLtMatmulAlgo_t& a, int first_row, int n_rows) {
    const Product product(weights_, n_rows);
    const float one = 1, zero = 0;
    const auto* in = static_cast<const std::byte*>(weights_.weights()) +
                     static_cast<size_t>(first_row) * weights_.padded() * (weights_.bf16() ? 2 : 4);
    void* out = out_.reserve(0);
    return cublasLtMatmul(handle_, product.operation, &one, weights_.weights(), product.weights, in,
                          product.in, &zero, out, product.out, out, product.out, &a, workspace_, kWorkspace,
                          stream_) == CUBLAS_STATUS_SUCCESS;
  }
  /// The fastest of `repeats` after one to warm up; false where the algorithm does not do this size.
  bool time(const cublasLtMatmulAlgo_t& a, int n_rows, int repeats, float* ms) {
    *ms = INFINITY;
    for (int i = 0; i <= repeats; i++) {
      check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
      if (!multiply(a, 0, n_rows)) return false;
      check(cudaEventRecord(end_, stream_), "cudaEventRecord");
      check(cudaEventSynchronize(end_), "cublasLtMatmul");
      float t = 0;
      check(cudaEventElapsedTime(&t, begin_, end_), "cudaEventElapsedTime");
      if (i > 0) *ms = std::min(*ms, t);
    }
    return true;
  }
  std::vector<float> outputs(const cublasLtMatmulAlgo_t& a, int first_row, int n_rows, int row) {
    std::vector<float> host(weights_.n_out());
    if (!multiply(a, first_row, n_rows)) return {};
    check(cudaMemcpyAsync(host.data(),
                          static_cast<const float*>(out_.reserve(0)) + static_cast<size_t>(row) * host.size(),
                          sizeof(float) * host.size(), cudaMemcpyDeviceToHost, stream_),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_), "cublasLtMatmul");
    return host;
  }
  bool same_bits(const cublasLtMatmulAlgo_t& a) {
    if (large_ <= kRow) return true;
    const std::vector<float> alone = outputs(a, kRow, 1, 0);
    for (const int n : {kRow + 1, 33, large_}) {
      if (n > large_) continue;
      const std::vector<float> beside = outputs(a, 0, n, kRow);
      if (alone.size() != beside.size() ||
          std::memcmp(alone.data(), beside.data(), sizeof(float) * alone.size()) != 0)
        return false;
    }
    return !alone.empty();
  }

  cublasLtHandle_t handle_;
  cudaStream_t stream_;
  void* workspace_;
  const DenseLinear& weights_;
  int large_;
  Buffer out_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

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

const cublasLtMatmulAlgo_t& Linears::algorithm(const DenseLinear& weights) {
  const auto [at, is_new] =
      algorithms_.try_emplace(Shape{weights.n_out(), weights.padded(), weights.bias() != nullptr});
  if (!is_new) return at->second;
  try {
    at->second = AlgorithmChoice(handle_, stream_, workspace_.reserve(kWorkspace), weights).best();
  } catch (...) {
    algorithms_.erase(at);
    throw;
  }
  return at->second;
}

void Linears::prepare(const DenseLinear& weights) {
  algorithm(weights);
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
                       &beta, p.out, product.out, p.out, product.out, &algorithm(weights),
                       workspace_.reserve(kWorkspace), kWorkspace, stream_),
        "cublasLtMatmul");
}

}  // namespace kv2::cuda
