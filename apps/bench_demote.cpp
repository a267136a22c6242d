// SPDX-License-Identifier: Apache-2.0
// Demotion by itself: random pages into codes of 2 bits, by the coder `round` with OSCAR's clips and by
// `feedback` as `kv2` uses it, under a random metric. Bytes are compared with the specification's first. On a
// CPU a few pages take the turns of all layers; a device gets as many copies of them at once as a long batch
// has. A decode step pays a 64th of a page's demotion.
#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "apps/bench.h"
#include "base/check.h"
#include "ops/cases/page_world.h"
#include "ops/device_extras.h"
#include "quant/feedback/factors.h"
#include "quant/int2/encode_head.h"

namespace kv2::app {
namespace {

constexpr int kMade = 8;       // pages
constexpr int kMany = 16'384;  // of 32 sequences of 32,768 tokens

/// Full pages on a device that are copies of a world's, one after the other, and room for their packed forms.
class PageCopies {
 public:
  PageCopies(Backend& backend, const cases::PageWorld& world, const cases::DevicePages& made, int n)
      : layout_(made.view().layout),
        full_(backend, n * layout_.full_page_bytes()),
        packed_(backend, n * layout_.packed_page_bytes()) {
    const size_t bytes = layout_.full_page_bytes();
    for (int i = 0; i < n; i++) {
      backend.copy(full_.data() + i * bytes, made.view().full + world.full_slot(0, i % kMade) * bytes, bytes);
      demotions_.push_back({i, n - 1 - i});
    }
  }
  KvView view() const { return {layout_, full_.data(), packed_.data(), {}}; }
  const std::vector<Demotion>& demotions() const { return demotions_; }
  const std::byte* packed_page(int i) const {
    return packed_.data() + demotions_[static_cast<size_t>(i)].packed_page * layout_.packed_page_bytes();
  }

 private:
  PageLayout layout_;
  cases::DeviceArray<std::byte> full_, packed_;
  std::vector<Demotion> demotions_;
};

/// A metric of full rank for every KV head: what its values are does not matter for the time.
std::vector<float> random_metric(int n_kv_heads, int d) {
  std::mt19937 dice(1);
  std::normal_distribution<float> normal;
  std::vector<float> out;
  for (int h = 0; h < n_kv_heads; h++) {
    std::vector<float> a(static_cast<size_t>(d) * 8);
    for (float& x : a) x = normal(dice);
    for (int i = 0; i < d; i++)
      for (int j = 0; j < d; j++) {
        float sum = i == j ? 0.3f : 0.0f;
        for (int k = 0; k < 8; k++) sum += a[i * 8 + k] * a[j * 8 + k];
        out.push_back(sum);
      }
  }
  return out;
}

/// The same coder with its tables in host memory, for the specification.
Coder with_tables(Coder coder, const float* f, const float* weight, const float* ones) {
  coder.tables = {f, weight, ones};
  return coder;
}

std::vector<std::byte> specified(const cases::PageWorld& world, int page, int head, const Int2Layout& layout,
                                 const Coder& k, const Coder& v) {
  const size_t rows = static_cast<size_t>(kPageTokens) * layout.head_dim;
  const std::vector<std::byte> full = world.canonical_full(0, page, head);
  const auto* keys = reinterpret_cast<const bf16*>(full.data());
  std::vector<std::byte> out(layout.bytes());
  const auto encode = [&](const bf16* from, const Coder& coder, size_t codes, size_t params) {
    int2::encode_head_reference(from, layout.head_dim, layout.head_dim, coder, head,
                                reinterpret_cast<uint8_t*>(out.data() + codes),
                                reinterpret_cast<fp16*>(out.data() + params));
  };
  encode(keys, k, layout.k_codes(), layout.k_params());
  encode(keys + rows, v, layout.v_codes(), layout.v_params());
  return out;
}

}  // namespace

void bench_demote(const BenchOptions& o, BenchReport& report) {
  const auto backend = open_device(o.model.device_options());
  for (const BenchShape& shape : bench_shapes(o)) {
    KvShape one = shape.kv;
    one.n_layers = 1;
    const int group = default_group(one.head_dim);
    const cases::WorldSpec spec{.shape = one, .group = group, .n_tokens = {kMade * kPageTokens}};
    const auto world = std::make_shared<const cases::PageWorld>(spec);
    const cases::DevicePages made(*backend, world);
    made.fill_full();

    const FeedbackFactors factors =
        fit_feedback(random_metric(one.n_kv_heads, one.head_dim),
                     identity_transform(one.n_kv_heads, one.head_dim), group, 0.02);
    const auto f = cases::on_device(*backend, factors.f), weight = cases::on_device(*backend, factors.weight),
               ones = cases::on_device(*backend, factors.ones);
    const Coder feedback{
        .kind = CoderKind::Feedback, .group = group, .search = {.steps = {1.2f}, .n_steps = 1, .refits = 1}};
    const bool cold = has_clock(*backend);
    const int layers = cold ? 1 : shape.kv.n_layers;
    const auto measure = [&](const char* name, int n_pages, const Coder& k, const Coder& v,
                             const Coder& host_k, const Coder& host_v) {
      const PageCopies pages(*backend, *world, made, n_pages);
      const KvView view = pages.view();
      const auto run = [&] {
        for (int layer = 0; layer < layers; layer++)  // the same layer: pages are read once
          backend->demote({0, k, v, view, pages.demotions()});
      };
      run();
      const Int2Layout layout = view.layout.int2(0);
      std::vector<std::byte> got(layout.bytes());
      for (int i = 0; i < n_pages; i = i == kMade - 1 ? std::max(kMade, n_pages - kMade) : i + 1)
        for (int h = 0; h < one.n_kv_heads; h++) {  // the first and the last of the copies
          backend->export_packed(pages.packed_page(i) + view.layout.packed_offset(0, h), layout, got);
          KV2_CHECK(got == specified(*world, i % kMade, h, layout, host_k, host_v),
                    "{}: page {} of KV head {} has other bytes", name, i, h);
        }
      BenchRow row{.part = "demote",
                   .name = fmt::format("{}: {}, {} pages, {} layer{}", shape.name, name, n_pages, layers,
                                       layers == 1 ? "" : "s")};
      row.times = time_on(*backend, o.repeats, run);
      row.bytes = static_cast<double>(view.layout.full_page_bytes() + view.layout.packed_page_bytes()) *
                  n_pages * layers;
      row.check = fmt::format("same bytes; {:.2f} us of a decode step on average",
                              row.times.best() * 1e6 * shape.kv.n_layers / layers / (n_pages * kPageTokens));
      report.add(row);
    };
    measure("round", cold ? kMany : kMade, spec.coder_k(), spec.coder_v(), spec.coder_k(), spec.coder_v());
    const Coder on_device = with_tables(feedback, f.data(), weight.data(), ones.data());
    const Coder on_host = with_tables(feedback, factors.f.data(), factors.weight.data(), factors.ones.data());
    measure("feedback", cold ? kMany / 8 : kMade, on_device, on_device, on_host, on_host);
  }
}

}  // namespace kv2::app
