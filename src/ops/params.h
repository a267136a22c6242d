// PODs that cross from the model to a backend's kernels. Pointers are device memory of that backend,
// row-major, float unless said otherwise. Nothing here owns anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kv2/cache.h"
#include "quant/coder.h"
#include "quant/page_layout.h"

namespace kv2 {

/// The rule of visibility, the one place where it is written down.
struct Visibility {
  int sink_pages = 1, recent_pages = 4;
  bool quantized = true;  // false: every page is read in full (bf16 caches)

  bool packed(int query_page, int page) const {
    return quantized && page >= sink_pages && page < query_page - recent_pages;
  }
  /// Queries at positions from here on have a non-empty history.
  int64_t first_position_with_history() const {
    return quantized ? static_cast<int64_t>(sink_pages + recent_pages + 1) * kPageTokens : INT64_MAX;
  }
};

/// One sequence's rows in a batch and its pages. Rows are consecutive positions.
struct SequenceView {
  int first_row = 0, n_rows = 0;
  int64_t first_pos = 0;
  /// Queries at positions below this read every page in full (PrefillPolicy::Exact); else 0.
  int64_t full_until = 0;
  const int32_t* full_pages = nullptr;    // [n_pages] slot in the pool of full pages, -1: not held
  const int32_t* packed_pages = nullptr;  // [n_pages] slot in the pool of packed pages, -1: not held
};

/// Where pages live. Head page of (layer, kv_head) in page slot s: full + s·full_page_bytes +
/// layout.full_offset(..).
struct KvView {
  PageLayout layout;
  std::byte* full = nullptr;
  std::byte* packed = nullptr;
  Visibility rule;
};

struct EmbedParams {
  const int32_t* tokens;  // [n_rows], host memory
  float* out;             // [n_rows, hidden]
  int n_rows;
};

struct RmsNormParams {
  const float* in;      // [n_rows, width]
  const float* weight;  // [width]
  float* out;           // [n_rows, width]; may be `in`
  int n_rows, width;
  float epsilon;
};

enum class Accumulate : uint8_t { No, Yes };  // out = or out +=

struct LinearParams {
  const float* in;  // [n_rows, n_in]
  float* out;       // [n_rows, n_out]
  int n_rows;
  Accumulate accumulate = Accumulate::No;
};

enum class RopePairing : uint8_t {
  Adjacent,  // (0,1), (2,3), …: GGUF files of the llama architecture, whose q and k rows are permuted for it
  Halves,    // (i, i + d/2): Hugging Face models, and GGUF files of qwen2 and qwen3
};

struct RopeParams {
  float* x;                    // [n_rows, n_heads, head_dim], in place
  const int64_t* positions;    // [n_rows], host memory
  const float* inv_frequency;  // [head_dim / 2], scaling already applied, host memory
  int n_rows, n_heads, head_dim;
  RopePairing pairing;
};

/// out = (x - mean)·matrix, or with `transpose` out = x·matrixᵀ; out += add afterwards. Matrix per KV head.
struct TransformParams {
  const float* in;      // [n_rows, n_heads, head_dim]
  float* out;           // [n_rows, n_heads, head_dim]; may be `in`
  const float* matrix;  // [n_kv_heads, head_dim, head_dim], row-major
  const float* mean;    // [n_kv_heads, head_dim] subtracted before, or nullptr
  const float* add;     // [n_kv_heads, head_dim] added after, or nullptr
  int n_rows, n_heads, n_kv_heads, head_dim;
  bool transpose;
};

/// Rounds K and V rows to bf16 and writes them to the full pages of their positions.
struct AppendParams {
  int layer;
  const float* k;  // [n_rows, n_kv_heads, head_dim], in the stored basis
  const float* v;  // [n_rows, n_kv_heads, head_dim]
  KvView kv;
  std::span<const SequenceView> sequences;
};

struct Demotion {
  int32_t full_page, packed_page;  // slots
  int32_t page = 0;                // of the sequence: its first position ÷ 64
};

/// Codes all 64 rows of each full page into its packed page, one layer.
struct DemoteParams {
  int layer;
  Coder k, v;
  KvView kv;
  std::span<const Demotion> pages;
};

struct AttendParams {
  int layer;
  const float* q;  // [n_rows, n_heads, head_dim], after RoPE and in K's stored basis
  float* out;      // [n_rows, n_heads, head_dim], in V's stored basis
  KvView kv;
  std::span<const SequenceView> sequences;
  float softmax_scale;  // 1/sqrt(head_dim) usually
  float soft_cap;       // logits become cap·tanh(logit / cap); 0: none
  /// The next op is a linear of `out`: a backend may leave it in the form that linear wants, too.
  bool feeds_linear = false;
};

struct SwigluParams {
  const float* gate;  // [n_rows, width] with row stride `stride`
  const float* up;    // [n_rows, width] with row stride `stride`
  float* out;         // [n_rows, width], contiguous; silu(gate)·up
  int n_rows, width;
  size_t stride;
};

}  // namespace kv2
