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

FewRows few_rows_of(const DenseLinear& w, const LinearInputs& in, float* out, int n_rows,
                    Accumulate accumulate) {
  return {.weights = static_cast<const __nv_bfloat16*>(w.weights()),
          .bias = w.bias(),
          .x = static_cast<const unsigned char*>(in.memory),
          .out = out,
          .n_in = w.padded(),
          .n_out = w.n_out(),
          .n_rows = n_rows,
          .accumulate = accumulate == Accumulate::Yes};
}

/// Picks algorithms for a shape of weights, for few, some and many rows: without split-K, a row's bits the
/// same alone and in a large batch and with all of them. What cuBLAS recommends for one size can be 20 times
/// slower at another.
class AlgorithmChoice {
 public:
  AlgorithmChoice(cublasLtHandle_t handle, cudaStream_t stream, void* workspace, int n_multiprocessors,
                  const DenseLinear& weights)
      : handle_(handle),
        stream_(stream),
        workspace_(workspace),
        n_multiprocessors_(n_multiprocessors),
        weights_(weights) {
    large_ = static_cast<int>(std::clamp<size_t>(kMaxOutputs / weights.n_out(), 64, 1024));
    large_ = std::min(large_, weights.n_out());  // rows of the weights serve as inputs
    few_ = std::min(8, large_);
    some_ = std::min(64, large_);
    out_.reserve(sizeof(float) * large_ * static_cast<size_t>(weights.n_out()));
    most_few_ = std::min(LinearChoice::kFew, large_);
    if (weights.bf16() && few_rows_fit(most_few_, weights.padded()))
      in_.reserve(sizeof(kv2::bf16) * most_few_ * static_cast<size_t>(weights.padded()));
    int device = 0, l2_bytes = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device), "cudaDeviceGetAttribute");
    flushed_ = 2 * static_cast<size_t>(l2_bytes);
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~AlgorithmChoice() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  AlgorithmChoice(const AlgorithmChoice&) = delete;
  AlgorithmChoice& operator=(const AlgorithmChoice&) = delete;

  LinearChoice best() {
    std::vector<Found> found;
    for (const cublasLtMatmulAlgo_t& a : candidates()) {
      Found f{a, 0, 0, 0};
      if (time(a, few_, kRepeats, &f.few) && time(a, some_, kRepeats, &f.some) &&
          time(a, large_, 2, &f.many) && same_bits(a))
        found.push_back(f);
    }
    if (found.empty())
      throw_error(
          ErrorCode::Unsupported,
          "cuBLAS has no algorithm for a linear of {} by {} that gives a row the same bits in every batch",
          weights_.n_in(), weights_.n_out());
    if (in_.bytes() > 0) {
      const std::vector<float> own = own_outputs(few_);
      const std::vector<Found> same = equal_to(found, own);
      if (!same.empty() && same_floats(own_outputs(most_few_), own)) {
        LinearChoice choice = fastest(same);
        // It comes with less around it than cuBLAS's.
        choice.own_few = time_own(few_) <= 1.15f * least(same, &Found::few);
        return choice;
      }
    }
    return fastest(equal_to(found, outputs(good_at_both_ends(found).algorithm, 0, few_, 0, few_)));
  }

 private:
  static constexpr size_t kMaxOutputs = size_t{32} << 20;
  static constexpr int kRepeats = 4, kRow = 3;  // kRow: whose bits are compared

  struct Found {
    cublasLtMatmulAlgo_t algorithm;
    float few, some, many;  // ms
  };
  static float least(const std::vector<Found>& found, float Found::*ms) {
    float out = INFINITY;
    for (const Found& f : found) out = std::min(out, f.*ms);
    return out;
  }
  /// The first that is nearly the fastest: so that one machine mostly chooses the same.
  static cublasLtMatmulAlgo_t first_good(const std::vector<Found>& found, float Found::*ms) {
    const float enough = 1.03f * least(found, ms);
    for (const Found& f : found)
      if (f.*ms <= enough) return f.algorithm;
    return found.front().algorithm;
  }
  static LinearChoice fastest(const std::vector<Found>& found) {
    return {first_good(found, &Found::few), first_good(found, &Found::some), first_good(found, &Found::many)};
  }
  /// One for everything, if need be.
  static const Found& good_at_both_ends(const std::vector<Found>& found) {
    const float few = least(found, &Found::few), many = least(found, &Found::many);
    const auto cost = [&](const Found& f) { return f.few / few + f.many / many; };
    return *std::min_element(found.begin(), found.end(),
                             [&](const Found& a, const Found& b) { return cost(a) < cost(b); });
  }
  std::vector<Found> equal_to(const std::vector<Found>& found, const std::vector<float>& want) {
    std::vector<Found> out;
    for (const Found& f : found) {
      const std::vector<float> got = outputs(f.algorithm, 0, few_, 0, few_);
      if (same_floats(got, want)) out.push_back(f);
    }
    return out;
  }
  static bool same_floats(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), sizeof(float) * a.size()) == 0;
  }
  /// Inputs of few_rows.cu: the first rows of the weights.
  LinearInputs fragments(int n_rows) {
    const LinearInputs in{in_.reserve(0), weights_.padded(), n_rows};
    launch_round_rows(weights_.weights(), true, in, n_rows, weights_.padded(), stream_);
    return in;
  }
  bool multiply_own(const LinearInputs& in) {
    launch_few_rows(
        few_rows_of(weights_, in, static_cast<float*>(out_.reserve(0)), in.columns, Accumulate::No),
        n_multiprocessors_, stream_);
    return cudaGetLastError() == cudaSuccess;
  }
  float time_own(int n_rows) {
    const LinearInputs in = fragments(n_rows);
    float ms = INFINITY;
    time([&] { return multiply_own(in); }, kRepeats, &ms);
    return ms;
  }
  /// The first few_ rows of a product of n_rows.
  std::vector<float> own_outputs(int n_rows) {
    return multiply_own(fragments(n_rows)) ? rows_of_output(0, few_) : std::vector<float>{};
  }

  /// What cuBLAS recommends for few, some and many rows, in that order. Where outputs are few and inputs many
  /// it recommends split-K alone: those are tried without.
  std::vector<cublasLtMatmulAlgo_t> candidates() {
    std::vector<cublasLtMatmulAlgo_t> all;
    for (const int rows : {1, 64, large_}) {
      const Product product(weights_, rows);
      cublasLtMatmulPreference_t preference = nullptr;
      check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
      prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
      const uint32_t out_alignment = weights_.n_out() % 4 == 0 ? 16 : 4;
      prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out_alignment);
      prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out_alignment);
      for (const uint32_t reductions : {CUBLASLT_REDUCTION_SCHEME_NONE, CUBLASLT_REDUCTION_SCHEME_MASK}) {
        prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
        cublasLtMatmulHeuristicResult_t found[24];
        int n_found = 0;
        if (cublasLtMatmulAlgoGetHeuristic(handle_, product.operation, product.weights, product.in,
                                           product.out, product.out, preference, std::size(found), found,
                                           &n_found) != CUBLAS_STATUS_SUCCESS)
          continue;
        for (int i = 0; i < n_found; i++) {
          cublasLtMatmulAlgo_t a = found[i].algo;
          if (splits_k(a) && !stop_splitting(product, a)) continue;
          const auto same = [&](const cublasLtMatmulAlgo_t& b) {
            return std::memcmp(&a, &b, sizeof(a)) == 0;
          };
          if (std::none_of(all.begin(), all.end(), same)) all.push_back(a);
        }
      }
      cublasLtMatmulPreferenceDestroy(preference);
    }
    return all;
  }
  /// The same algorithm in one part; false where it is none.
  bool stop_splitting(const Product& product, cublasLtMatmulAlgo_t& a) const {
    const int32_t parts = 1;
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    cublasLtMatmulHeuristicResult_t result;
    return cublasLtMatmulAlgoConfigSetAttribute(&a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof(parts)) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoConfigSetAttribute(&a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                                sizeof(reduction)) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoCheck(handle_, product.operation, product.weights, product.in, product.out,
                                   product.out, &a, &result) == CUBLAS_STATUS_SUCCESS;
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
    return time([&] { return multiply(a, 0, n_rows); }, repeats, ms);
  }
  template <class Run>
  bool time(const Run& run, int repeats, float* ms) {
    *ms = INFINITY;
    for (int i = 0; i <= repeats; i++) {
      // small weights would stay in the L2 as they never do in a model
      check(cudaMemsetAsync(flush_.reserve(flushed_), i, flushed_, stream_), "cudaMemset");
      check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
      if (!run()) return false;
      check(cudaEventRecord(end_, stream_), "cudaEventRecord");
      check(cudaEventSynchronize(end_), "a linear");
      float t = 0;
      check(cudaEventElapsedTime(&t, begin_, end_), "cudaEventElapsedTime");
      if (i > 0) *ms = std::min(*ms, t);
    }
    return true;
  }
  std::vector<float> rows_of_output(int row, int n_rows) {
    std::vector<float> host(static_cast<size_t>(n_rows) * weights_.n_out());
    const auto* from =
        static_cast<const float*>(out_.reserve(0)) + static_cast<size_t>(row) * weights_.n_out();
    check(cudaMemcpyAsync(host.data(), from, sizeof(float) * host.size(), cudaMemcpyDeviceToHost, stream_),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_), "a linear");
    return host;
  }
  /// `take` rows from `row` on of a product of n_rows inputs.
  std::vector<float> outputs(const cublasLtMatmulAlgo_t& a, int first_row, int n_rows, int row,
                             int take = 1) {
    return multiply(a, first_row, n_rows) ? rows_of_output(row, take) : std::vector<float>{};
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
  int n_multiprocessors_;
  const DenseLinear& weights_;
  int few_, some_, large_, most_few_;  // few_, some_, large_: timed
  size_t flushed_;
  Buffer in_, out_, flush_;
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

Linears::Linears(cudaStream_t stream, bool bf16, int n_multiprocessors)
    : stream_(stream), bf16_(bf16), n_multiprocessors_(n_multiprocessors) {
  check(cublasLtCreate(&handle_), "cublasLtCreate");
  workspace_.reserve(kWorkspace);
}

Linears::~Linears() {
  cublasLtDestroy(handle_);
}

size_t Linears::scratch_bytes(int n_rows, int max_width) const {
  return kWorkspace + static_cast<size_t>(n_rows) * ((max_width + 7) / 8 * 8) * (bf16_ ? 2 : 4);
}

const LinearChoice& Linears::choice(const DenseLinear& weights) {
  const auto [at, is_new] =
      choices_.try_emplace(Shape{weights.n_out(), weights.padded(), weights.bias() != nullptr});
  if (!is_new) return at->second;
  try {
    at->second =
        AlgorithmChoice(handle_, stream_, workspace_.reserve(kWorkspace), n_multiprocessors_, weights).best();
  } catch (...) {
    choices_.erase(at);
    throw;
  }
  return at->second;
}

void Linears::prepare(const DenseLinear& weights) {
  choice(weights);
}

LinearInputs Linears::inputs_for(int n_rows, int n_in) {
  if (!bf16_ || n_in % 8 != 0) return {};
  return {inputs_.reserve(static_cast<size_t>(n_rows) * n_in * sizeof(kv2::bf16)), n_in,
          few_rows_fit(n_rows, n_in) ? n_rows : 0};
}

void Linears::multiply(const DenseLinear& weights, const LinearParams& p, const LinearInputs* rounded) {
  if (p.n_rows == 0) return;
  const LinearChoice& c = choice(weights);
  const int padded = weights.padded();
  const bool fits = weights.bf16() && few_rows_fit(p.n_rows, padded),
             // two additions round in an order of their own
      own = fits && c.own_few && !(weights.bias() && p.accumulate == Accumulate::Yes);
  LinearInputs in{nullptr, padded, own ? p.n_rows : 0};
  if (rounded && rounded->columns == in.columns) {
    in = *rounded;
  } else if (weights.bf16()) {
    in.memory = inputs_.reserve(static_cast<size_t>(p.n_rows) * padded * sizeof(kv2::bf16));
    launch_round_rows(p.in, false, in, p.n_rows, weights.n_in(), stream_);
    check_launch("round_rows");
  } else if (padded != weights.n_in()) {
    in.memory = inputs_.reserve(static_cast<size_t>(p.n_rows) * padded * sizeof(float));
    launch_pad_rows(p.in, static_cast<float*>(in.memory), p.n_rows, weights.n_in(), padded, stream_);
    check_launch("pad_rows");
  }
  if (own) {
    launch_few_rows(few_rows_of(weights, in, p.out, p.n_rows, p.accumulate), n_multiprocessors_, stream_);
    return check_launch("few_rows");
  }
  const Product product(weights, p.n_rows);
  const float one = 1.0f, beta = p.accumulate == Accumulate::Yes ? 1.0f : 0.0f;
  const cublasLtMatmulAlgo_t& algorithm = p.n_rows <= LinearChoice::kFew    ? c.few
                                          : p.n_rows <= LinearChoice::kSome ? c.some
                                                                            : c.many;
  check(cublasLtMatmul(handle_, product.operation, &one, weights.weights(), product.weights,
                       in.memory ? in.memory : p.in, product.in, &beta, p.out, product.out, p.out,
                       product.out, &algorithm, workspace_.reserve(kWorkspace), kWorkspace, stream_),
        "cublasLtMatmul");
}

}  // namespace kv2::cuda
