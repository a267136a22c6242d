// SPDX-License-Identifier: Apache-2.0
// make_cpu_backend: the ops of Backend handed to the thread team. Work is cut by rows, pages and heads in
// sizes that do not depend on the number of threads, and no task depends on another. Device memory is host
// memory.
#include "cpu/cpu_backend.h"

#include "cpu/targets.h"  // before Highway

#include <hwy/targets.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/float16.h"
#include "base/threads.h"
#include "cpu/attend.h"
#include "cpu/elementwise.h"
#include "cpu/head_ops.h"
#include "cpu/head_page.h"
#include "cpu/linear.h"
#include "cpu/tables.h"
#include "cpu/vnni.h"
#include "ops/device_extras.h"

namespace kv2 {
namespace cpu {
namespace {

constexpr int64_t kBaseline = HWY_SCALAR | HWY_EMU128;

class CpuBackend final : public Backend, public DeviceArgMax {
 public:
  explicit CpuBackend(const CpuOptions& options)
      : huge_pages_(options.huge_pages ? HugePages::On : HugePages::Off),
        team_(options.n_threads, options.pinning),
        linears_(team_, options.precision, huge_pages_),
        attention_(team_, huge_pages_),
        scratch_(team_.size(), huge_pages_) {}

  std::string describe() const override {
    return fmt::format("cpu: {}, linears {}, {} thread{}", simd_target_name(simd_targets().front()),
                       linears_.describe(), team_.size(), team_.size() == 1 ? "" : "s");
  }
  std::string linear_precision() const override { return linears_.uses_bf16() ? "bf16" : "f32"; }

  void* allocate(size_t bytes) override { return allocate_aligned(bytes, huge_pages_); }
  void release(void* memory) noexcept override { std::free(memory); }
  void upload(void* device, const void* host, size_t bytes) override { copy(device, host, bytes); }
  void download(void* host, const void* device, size_t bytes) override { copy(host, device, bytes); }
  void copy(void* to, const void* from, size_t bytes) override {
    if (bytes) std::memmove(to, from, bytes);
  }
  void sync() override {}

  bool multiplies_codes() const override { return linears_.multiplies_codes(); }
  size_t coded_bytes(int n_in, int n_out, const WeightCodes& codes) const override {
    const StripShape s = StripShape::of(n_in, n_out, codes);
    return s.strip_bytes() * static_cast<size_t>(s.n_strips());
  }
  std::unique_ptr<Linear> make_linear(const LinearSource& source) override { return linears_.pack(source); }
  std::unique_ptr<Linear> make_embedding(const LinearSource& source) override {
    KV2_CHECK(source.n_in > 0 && source.n_out > 0 && source.fill, "an embedding of {} by {}", source.n_out,
              source.n_in);
    return std::make_unique<Embedding>(source, linears_.uses_bf16(),
                                       linears_.multiplies_codes() && source.coded.bits != 0, huge_pages_);
  }
  size_t scratch_bytes(int n_rows, int max_width, const KvShape& shape) const override {
    const size_t d = static_cast<size_t>(shape.head_dim);
    return linears_.scratch_bytes(n_rows, max_width) + Attention::scratch_bytes(team_.size(), shape) +
           static_cast<size_t>(team_.size()) *
               std::max(head_op_scratch(shape.head_dim), codec_scratch(shape)) +
           static_cast<size_t>(n_rows) * (d * 4 + 8);
  }

  void embed(const Linear& table, const EmbedParams& p) override {
    const auto* embedding = dynamic_cast<const Embedding*>(&table);
    KV2_CHECK(embedding, "this table was not made by the CPU backend's make_embedding");
    for (int r = 0; r < p.n_rows; r++)
      KV2_CHECK(p.tokens[r] >= 0 && p.tokens[r] < table.n_out(), "token {} of a vocabulary of {}",
                p.tokens[r], table.n_out());
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
        rope_row(p.x + static_cast<size_t>(r) * width, p.n_heads, p.head_dim, p.pairing, rope_.cosines(r),
                 rope_.sines(r));
    });
  }
  void transform(const TransformParams& p) override { cpu::transform(team_, scratch_, p); }
  void arg_max(const float* rows, int n_rows, int width, int32_t* best) override {
    team_.run(n_rows, [&](int64_t i, int) {
      best[i] = arg_max_of_row(rows + static_cast<size_t>(i) * width, static_cast<size_t>(width));
    });
  }
  void append(const AppendParams& p) override { cpu::append(team_, p); }
  void demote(const DemoteParams& p) override { cpu::demote(team_, scratch_, p); }
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
  const HugePages huge_pages_;
  ThreadTeam team_;
  LinearEngine linears_;
  Attention attention_;
  RopeTable rope_;
  WorkerScratch scratch_;
};

}  // namespace
}  // namespace cpu

std::vector<int64_t> simd_targets() {
  std::vector<int64_t> targets;  // lower bits are better targets
  if ((hwy::SupportedTargets() & HWY_TARGETS & HWY_AVX3) && cpu::processor_has_vnni())
    targets.push_back(cpu::kAvx3Vnni);
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS & ~cpu::kBaseline; left; left &= left - 1)
    targets.push_back(left & -left);
  return targets;
}

std::string simd_target_name(int64_t target) {
  return target == cpu::kAvx3Vnni ? "AVX3+VNNI" : hwy::TargetName(target);
}

void force_simd_target(int64_t target) {
  hwy::SetSupportedTargetsForTest(0);
  const auto targets = simd_targets();
  KV2_CHECK(target == 0 || std::find(targets.begin(), targets.end(), target) != targets.end(),
            "SIMD target {:#x} is not here", target);
  cpu::set_use_vnni(target == 0 || target == cpu::kAvx3Vnni);
  hwy::SetSupportedTargetsForTest(target == cpu::kAvx3Vnni ? HWY_AVX3 : target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
  if (simd_targets().empty())
    throw_error(ErrorCode::Unsupported,
                "this processor has neither AVX2 nor NEON, which the CPU backend needs");
  return std::make_unique<cpu::CpuBackend>(options);
}

}  // namespace kv2
