// SPDX-License-Identifier: Apache-2.0
#include "cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/float16.h"
#include "base/threads.h"
#include "cpu/attend.h"
#include "cpu/elementwise.h"
#include "cpu/head_page.h"
#include "cpu/linear.h"
#include "cpu/targets.h"
#include "quant/int2/int2.h"

#include <hwy/targets.h>

namespace kv2 {
namespace cpu {
namespace {

constexpr int64_t kBaseline = HWY_SCALAR | HWY_EMU128;

class Embedding final : public Linear {
 public:
  Embedding(const LinearSource& source, bool bf16)
      : n_in_(source.n_in), n_out_(source.n_out), bf16_(bf16),
        table_(static_cast<size_t>(source.n_in) * source.n_out * (bf16 ? 2 : 4)) {
    const size_t width = static_cast<size_t>(n_in_);
    if (!bf16) {
      source.fill(0, n_out_, table_.as<float>());
      return;
    }
    const int step = 256;
    std::vector<float> rows(step * width);
    for (int row = 0; row < n_out_; row += step) {
      const int n = std::min(step, n_out_ - row);
      source.fill(row, n, rows.data());
      to_bf16_row(rows.data(), n * width, table_.as<kv2::bf16>() + row * width);
    }
  }
  int n_in() const override { return n_in_; }
  int n_out() const override { return n_out_; }
  size_t bytes() const override { return table_.bytes(); }

  void read(int token, float* out) const {
    const size_t width = static_cast<size_t>(n_in_), at = static_cast<size_t>(token) * width;
    if (bf16_)
      from_bf16_row(table_.as<kv2::bf16>() + at, width, out);
    else
      std::memcpy(out, table_.as<float>() + at, width * sizeof(float));
  }

 private:
  int n_in_, n_out_;
  bool bf16_;
  AlignedBuffer table_;
};

/// cos and sin of the positions of a batch: the same for q and k of all layers, so computed once per batch.
class RopeTable {
 public:
  void prepare(ThreadTeam& team, const RopeParams& p) {
    const size_t half = static_cast<size_t>(p.head_dim / 2);
    const std::span<const int64_t> positions(p.positions, static_cast<size_t>(p.n_rows));
    const std::span<const float> inv_frequency(p.inv_frequency, half);
    if (std::ranges::equal(positions, positions_) &&
        std::ranges::equal(inv_frequency, inv_frequency_))
      return;
    positions_.assign(positions.begin(), positions.end());
    inv_frequency_.assign(inv_frequency.begin(), inv_frequency.end());
    table_.resize(positions.size() * half * 2);
    team.run((p.n_rows + 7) / 8, [&](int64_t i, int) {
      for (size_t r = static_cast<size_t>(i) * 8; r < std::min(positions.size(), static_cast<size_t>(i) * 8 + 8); r++)
        rope_angles(positions_[r], inv_frequency_.data(), p.head_dim, &table_[r * half * 2], &table_[r * half * 2 + half]);
    });
  }
  const float* cosines(int row) const { return &table_[static_cast<size_t>(row) * inv_frequency_.size() * 2]; }
  const float* sines(int row) const { return cosines(row) + inv_frequency_.size(); }

 private:
  std::vector<int64_t> positions_;
  std::vector<float> inv_frequency_, table_;
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuOptions& options)
      : team_(options.n_threads), linears_(team_, options.precision), attention_(team_), workers_(static_cast<size_t>(team_.size())) {}

  std::string describe() const override {
    return fmt::format("cpu: {}, linears {}, {} thread{}", simd_target_name(simd_targets().front()), linears_.describe(),
                       team_.size(), team_.size() == 1 ? "" : "s");
  }
  std::string linear_precision() const override { return linears_.uses_bf16() ? "bf16" : "f32"; }

  void* allocate(size_t bytes) override { return allocate_aligned(bytes); }
  void release(void* memory) noexcept override { std::free(memory); }
  void upload(void* device, const void* host, size_t bytes) override { std::memcpy(device, host, bytes); }
  void download(void* host, const void* device, size_t bytes) override { std::memcpy(host, device, bytes); }
  void copy(void* to, const void* from, size_t bytes) override { std::memmove(to, from, bytes); }
  void sync() override {}

  std::unique_ptr<Linear> make_linear(const LinearSource& source) override { return linears_.pack(source); }
  std::unique_ptr<Linear> make_embedding(const LinearSource& source) override {
    KV2_CHECK(source.n_in > 0 && source.n_out > 0 && source.fill, "an embedding of {} by {}", source.n_out, source.n_in);
    return std::make_unique<Embedding>(source, linears_.uses_bf16());
  }
  size_t scratch_bytes(int n_rows, int max_width, const KvShape& shape) const override {
    const size_t d = static_cast<size_t>(shape.head_dim);
    return linears_.scratch_bytes(n_rows, max_width) + Attention::scratch_bytes(team_.size(), shape) +
           static_cast<size_t>(team_.size()) * worker_bytes(d) + static_cast<size_t>(n_rows) * (d * 4 + 8);
  }

  void embed(const Linear& table, const EmbedParams& p) override {
    const auto* embedding = dynamic_cast<const Embedding*>(&table);
    KV2_CHECK(embedding, "this table was not made by the CPU backend's make_embedding");
    for (int r = 0; r < p.n_rows; r++)
      KV2_CHECK(p.tokens[r] >= 0 && p.tokens[r] < table.n_out(), "token {} of a vocabulary of {}", p.tokens[r], table.n_out());
    rows(p.n_rows, table.n_in(), [&](int first, int n) {
      for (int r = first; r < first + n; r++)
        embedding->read(p.tokens[r], p.out + static_cast<size_t>(r) * static_cast<size_t>(table.n_in()));
    });
  }
  void rms_norm(const RmsNormParams& p) override {
    rows(p.n_rows, p.width, [&](int first, int n) { rms_norm_rows(p, first, n); });
  }
  void linear(const Linear& weights, const LinearParams& p) override { linears_.multiply(weights, p); }
  void swiglu(const SwigluParams& p) override {
    rows(p.n_rows, p.width * 8, [&](int first, int n) { swiglu_rows(p, first, n); });
  }
  void rope(const RopeParams& p) override {
    rope_.prepare(team_, p);
    const size_t width = static_cast<size_t>(p.n_heads) * static_cast<size_t>(p.head_dim);
    rows(p.n_rows, p.n_heads * p.head_dim, [&](int first, int n) {
      for (int r = first; r < first + n; r++)
        rope_row(p.x + static_cast<size_t>(r) * width, p.n_heads, p.head_dim, p.pairing, rope_.cosines(r), rope_.sines(r));
    });
  }
  void transform(const TransformParams& p) override;
  void append(const AppendParams& p) override;
  void demote(const DemoteParams& p) override;
  void attend(const AttendParams& p) override { attention_.attend(p); }

  void export_full(const void* page, int head_dim, std::span<std::byte> canonical) override {
    KV2_CHECK(canonical.size() == sizeof(bf16) * 2 * kPageTokens * static_cast<size_t>(head_dim));
    cpu::export_full(static_cast<const std::byte*>(page), head_dim, canonical.data());
  }
  void import_full(void* page, int head_dim, std::span<const std::byte> canonical) override {
    KV2_CHECK(canonical.size() == sizeof(bf16) * 2 * kPageTokens * static_cast<size_t>(head_dim));
    cpu::import_full(static_cast<std::byte*>(page), head_dim, canonical.data());
  }
  void export_packed(const void* page, const Int2Layout& layout, std::span<std::byte> canonical) override {
    KV2_CHECK(canonical.size() == layout.bytes());
    cpu::export_packed(static_cast<const std::byte*>(page), layout, canonical.data());
  }
  void import_packed(void* page, const Int2Layout& layout, std::span<const std::byte> canonical) override {
    KV2_CHECK(canonical.size() == layout.bytes());
    cpu::import_packed(static_cast<std::byte*>(page), layout, canonical.data());
  }

 private:
  // transform: a matrix, 12 rows; demote: 64 rows of keys and a canonical packed page (no larger than the keys' rows).
  static size_t worker_bytes(size_t d) { return std::max(4 * (d * d + 12 * d), 2 * size_t{2} * kPageTokens * d * 2); }

  /// body(first, n) over all rows, some thousands of elements to a task; small batches stay on this thread.
  template <class Body>
  void rows(int n_rows, int width, const Body& body) {
    const int per_task = std::max(1, 16384 / std::max(1, width));
    if (n_rows <= per_task) return body(0, n_rows);
    team_.run((n_rows + per_task - 1) / per_task, [&](int64_t i, int) {
      const int first = static_cast<int>(i) * per_task;
      body(first, std::min(per_task, n_rows - first));
    });
  }
  template <class T>
  T* scratch(int worker) {
    return workers_[static_cast<size_t>(worker)].as<T>();
  }
  void grow_workers(int head_dim) {
    for (AlignedBuffer& w : workers_) w.grow(worker_bytes(static_cast<size_t>(head_dim)));
  }

  ThreadTeam team_;
  LinearEngine linears_;
  Attention attention_;
  RopeTable rope_;
  std::vector<AlignedBuffer> workers_;
};

void CpuBackend::transform(const TransformParams& p) {
  const int d = p.head_dim, q_per_kv = p.n_heads / p.n_kv_heads;
  if (d % 16 != 0) throw_error(ErrorCode::Unsupported, "head_dim {} on the CPU: transforms need a multiple of 16", d);
  grow_workers(d);
  // A task is one KV head and a run of rows; 6 vectors at a time go through the matrix.
  const int rows_per_task = std::max(1, 96 / q_per_kv), chunks = (p.n_rows + rows_per_task - 1) / rows_per_task;
  team_.run(static_cast<int64_t>(chunks) * p.n_kv_heads, [&](int64_t task, int worker) {
    const int kv_head = static_cast<int>(task % p.n_kv_heads), row0 = static_cast<int>(task / p.n_kv_heads) * rows_per_task;
    const int n = std::min(rows_per_task, p.n_rows - row0) * q_per_kv;
    const size_t dd = static_cast<size_t>(d);
    const float* matrix = p.matrix + static_cast<size_t>(kv_head) * dd * dd;
    float* transposed = scratch<float>(worker);
    if (p.transpose) {
      transpose_matrix(matrix, d, transposed);
      matrix = transposed;
    }
    const float* mean = p.mean ? p.mean + static_cast<size_t>(kv_head) * dd : nullptr;
    const float* add = p.add ? p.add + static_cast<size_t>(kv_head) * dd : nullptr;
    for (int i = 0; i < n; i += 6) {
      const float* in[6];
      float* out[6];
      const int block = std::min(6, n - i);
      for (int j = 0; j < block; j++) {
        const size_t row = static_cast<size_t>(row0 + (i + j) / q_per_kv);
        const size_t at = (row * p.n_heads + static_cast<size_t>(kv_head * q_per_kv + (i + j) % q_per_kv)) * dd;
        in[j] = p.in + at;
        out[j] = p.out + at;
      }
      multiply_heads(in, out, block, d, matrix, mean, add, transposed + dd * dd);
    }
  });
}

void CpuBackend::append(const AppendParams& p) {
  struct Piece {  // rows of one sequence that fall into one page
    int32_t slot;
    int token, n, row;
  };
  const KvShape& shape = p.kv.layout.shape;
  std::vector<Piece> pieces;
  for (const SequenceView& s : p.sequences) {
    for (int at = 0; at < s.n_rows;) {
      const int64_t pos = s.first_pos + at;
      const int token = static_cast<int>(pos % kPageTokens), n = std::min(s.n_rows - at, kPageTokens - token);
      const int32_t slot = s.full_pages ? s.full_pages[pos / kPageTokens] : -1;
      KV2_CHECK(slot >= 0 && p.kv.full, "full page {} not held", pos / kPageTokens);
      pieces.push_back({slot, token, n, s.first_row + at});
      at += n;
    }
  }
  const auto write = [&](int64_t i, int) {
    const Piece& piece = pieces[static_cast<size_t>(i / shape.n_kv_heads)];
    const int head = static_cast<int>(i % shape.n_kv_heads), d = shape.head_dim;
    const size_t stride = static_cast<size_t>(shape.n_kv_heads) * d, from = static_cast<size_t>(piece.row) * stride + static_cast<size_t>(head) * d;
    std::byte* page = p.kv.full + static_cast<size_t>(piece.slot) * p.kv.layout.full_page_bytes() + p.kv.layout.full_offset(p.layer, head);
    write_rows(page, d, piece.token, piece.n, p.k + from, p.v + from, stride);
  };
  const int64_t n = static_cast<int64_t>(pieces.size()) * shape.n_kv_heads;
  if (pieces.size() == 1 && pieces[0].n == 1)  // one token: waking the team costs more
    for (int64_t i = 0; i < n; i++) write(i, 0);
  else
    team_.run(n, write);
}

void CpuBackend::demote(const DemoteParams& p) {
  const KvShape& shape = p.kv.layout.shape;
  const int d = shape.head_dim;
  const Int2Layout layout{d, p.kv.layout.group};
  KV2_CHECK(p.kv.layout.codec == CodecId::Int2, "demote needs a codec");
  KV2_CHECK(p.k.group == layout.group && p.v.group == layout.group, "coder and layout differ in group");
  grow_workers(d);
  team_.run(static_cast<int64_t>(p.pages.size()) * shape.n_kv_heads, [&](int64_t i, int worker) {
    const Demotion& page = p.pages[static_cast<size_t>(i / shape.n_kv_heads)];
    const int head = static_cast<int>(i % shape.n_kv_heads);
    KV2_CHECK(page.full_page >= 0 && page.packed_page >= 0, "a page to demote is not held");
    const std::byte* full = p.kv.full + static_cast<size_t>(page.full_page) * p.kv.layout.full_page_bytes() + p.kv.layout.full_offset(p.layer, head);
    std::byte* packed = p.kv.packed + static_cast<size_t>(page.packed_page) * p.kv.layout.packed_page_bytes() + p.kv.layout.packed_offset(p.layer, head);
    bf16* keys = scratch<bf16>(worker);
    auto* canonical = reinterpret_cast<std::byte*>(keys + static_cast<size_t>(kPageTokens) * d);
    const auto codes = [&](size_t at) { return reinterpret_cast<uint8_t*>(canonical + at); };
    const auto params = [&](size_t at) { return reinterpret_cast<fp16*>(canonical + at); };
    transpose_keys(full, d, keys);
    const auto* values = reinterpret_cast<const bf16*>(full) + static_cast<size_t>(kPageTokens) * d;
    int2::encode_rows(keys, static_cast<size_t>(d), d, p.k, codes(layout.k_codes()), params(layout.k_params()));
    int2::encode_rows(values, static_cast<size_t>(d), d, p.v, codes(layout.v_codes()), params(layout.v_params()));
    cpu::import_packed(packed, layout, canonical);
  });
}

}  // namespace
}  // namespace cpu

std::vector<int64_t> simd_targets() {
  std::vector<int64_t> targets;  // lower bits are better targets
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS & ~cpu::kBaseline; left; left &= left - 1)
    targets.push_back(left & -left);
  return targets;
}

std::string simd_target_name(int64_t target) {
  return hwy::TargetName(target);
}

void force_simd_target(int64_t target) {
  hwy::SetSupportedTargetsForTest(0);
  const auto targets = simd_targets();
  KV2_CHECK(target == 0 || std::find(targets.begin(), targets.end(), target) != targets.end(), "SIMD target {:#x} is not here", target);
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
  if (simd_targets().empty())
    throw_error(ErrorCode::Unsupported, "this processor has neither AVX2 nor NEON, which the CPU backend needs");
  return std::make_unique<cpu::CpuBackend>(options);
}

}  // namespace kv2
