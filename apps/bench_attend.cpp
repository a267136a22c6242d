// SPDX-License-Identifier: Apache-2.0
// Decode attention by itself: one random sequence, checked against the reference backend first. A layer's
// pages would fit into a cache, which no layer of a decode step finds there: so attention walks over as many
// copies of the pages as the model has layers.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/bench.h"
#include "base/check.h"
#include "cache/cache_plan.h"
#include "ops/cases/attend_case.h"
#include "ops/device_extras.h"
#include "ops/reference/reference.h"

namespace kv2::app {
namespace {

using cases::DeviceArray;

/// ‖got − want‖ ÷ ‖want‖ over everything.
double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); i++) {
    const double difference = static_cast<double>(got[i]) - want[i];
    error += difference * difference;
    norm += static_cast<double>(want[i]) * want[i];
  }
  return std::sqrt(error / norm);
}

/// Pools of pages of all layers with one random sequence of n tokens; layer 0 is that of a PageWorld, the
/// others are its copies.
class AttendBench {
 public:
  AttendBench(Backend& backend, const KvShape& shape, const CacheSpec& spec, int64_t n_tokens)
      : backend_(backend), shape_(shape), n_tokens_(n_tokens), layout_(PageLayout::of(spec, shape)) {
    backend.require_formats(layout_);
    const LayerLayout part = layout_.packs() ? layout_.layer(0) : LayerLayout{};  // of all layers alike
    const bool int2 = part.int2_heads();
    KvShape one = shape;
    one.n_layers = 1;
    case_ = {.name = "bench",
             .world = {.shape = one,
                       .group = int2 ? part.k.group : 0,
                       .rule = {spec.sink_pages(), spec.recent_pages(), layout_.packs()},
                       .n_tokens = {n_tokens},
                       .k = int2 ? SideFormat{} : part.k,
                       .v = int2 ? SideFormat{} : part.v},
             .segments = {{0, n_tokens - 1, 1}}};
    world_ = std::make_shared<const cases::PageWorld>(case_.world);
    // Slot s of page s in both pools; only forms that the last query reads are filled.
    const int n_pages = static_cast<int>(pages_of(n_tokens));
    full_slots_.resize(n_pages, -1);
    packed_slots_.resize(n_pages, -1);
    for (int p = 0; p < n_pages; p++)
      (case_.world.rule.packed(n_pages - 1, p) ? packed_slots_[p] = n_packed_++ : full_slots_[p] = n_full_++);
    full_.emplace(backend, n_full_ * layout_.full_page_bytes());
    packed_.emplace(backend, std::max<size_t>(64, n_packed_ * layout_.packed_page_bytes()));
    fill();
  }

  BenchRow run(int repeats, const std::string& name) {
    const size_t width = static_cast<size_t>(shape_.n_heads) * shape_.head_dim;
    cases::Random random(3);
    const auto q = cases::on_device(backend_, random.normals(width, 0.2f, 1.0f));
    const DeviceArray<float> out(backend_, width);
    const DeviceArray<int32_t> full(backend_, full_slots_), packed(backend_, packed_slots_);
    const SequenceView view{
        .n_rows = 1, .first_pos = n_tokens_ - 1, .full_pages = full.data(), .packed_pages = packed.data()};
    const auto attend = [&](int layer) {
      backend_.attend({.layer = layer,
                       .q = q.data(),
                       .out = out.data(),
                       .kv = {layout_, full_->data(), packed_->data(), case_.world.rule},
                       .sequences = {&view, 1},
                       .softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
                       .soft_cap = 0});
    };
    attend(0);
    const double error = relative_error(out.download(), expected(q.download()));
    BenchRow row{.part = "attend", .name = name};
    row.times = time_of(repeats, [&] {
      for (int layer = 0; layer < shape_.n_layers; layer++) attend(layer);
      backend_.sync();
    });
    row.bytes =
        static_cast<double>(n_full_ * layout_.full_page_bytes() + n_packed_ * layout_.packed_page_bytes());
    // From codes of 2 bits every product is two byte products; pages of other forms are multiplied in f32.
    const bool coded = layout_.packs() && layout_.layer(0).int2_heads();
    const auto products_of = [&](size_t n_pages) {
      return 4.0 * width * static_cast<double>(n_pages * kPageTokens) * shape_.n_layers;
    };
    if (coded)
      row.operations = {.int8 = 2 * products_of(n_packed_), .f32 = products_of(n_full_)};
    else
      row.operations.f32 = products_of(n_packed_ + n_full_);
    row.error = error;
    row.check = "against f64";
    return row;
  }

 private:
  void fill() {
    for (size_t p = 0; p < full_slots_.size(); p++)
      full_slots_[p] >= 0 ? fill_full(static_cast<int>(p)) : fill_packed(static_cast<int>(p));
  }
  void fill_full(int page) {
    std::byte* at = full_->data() + full_slots_[page] * layout_.full_page_bytes();
    for (int h = 0; h < shape_.n_kv_heads; h++)
      for (int layer = 0; layer < shape_.n_layers; layer++)
        backend_.import_full(at + layout_.full_offset(layer, h), shape_.head_dim,
                             world_->canonical_full(0, page, h));
  }
  void fill_packed(int page) {
    std::byte* at = packed_->data() + packed_slots_[page] * layout_.packed_page_bytes();
    const LayerLayout& first = layout_.layer(0);
    if (first.int2_heads())
      for (int h = 0; h < shape_.n_kv_heads; h++)
        backend_.import_packed(at + layout_.packed_offset(0, h), layout_.int2(0),
                               world_->canonical_packed(0, page, h));
    else
      import_sides(backend_, at, first, shape_, world_->canonical_packed(0, page, 0));
    for (int layer = 1; layer < shape_.n_layers; layer++)
      backend_.copy(at + layout_.layer(layer).offset, at, first.bytes());
  }
  std::vector<float> expected(const std::vector<float>& query) const {
    const auto reference = make_reference_backend(LinearPrecision::F32);
    const cases::DevicePages pages(*reference, world_);
    pages.fill_full();
    pages.fill_packed();
    const auto q = cases::on_device(*reference, query);
    const DeviceArray<float> out(*reference, query.size());
    const cases::Views views = world_->views(case_.segments);
    reference->attend({.layer = 0,
                       .q = q.data(),
                       .out = out.data(),
                       .kv = pages.view(),
                       .sequences = views.views,
                       .softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
                       .soft_cap = 0});
    return out.download();
  }

  Backend& backend_;
  KvShape shape_;
  int64_t n_tokens_;
  cases::AttendCase case_;
  std::shared_ptr<const cases::PageWorld> world_;
  PageLayout layout_;
  std::vector<int32_t> full_slots_, packed_slots_;
  size_t n_full_ = 0, n_packed_ = 0;
  std::optional<DeviceArray<std::byte>> full_, packed_;
};

}  // namespace

void bench_attend(const BenchOptions& o, BenchReport& report) {
  const auto backend = open_device(o.model.device_options());
  for (const BenchShape& shape : bench_shapes(o))
    for (const int64_t depth : shape.depths) {
      if (depth == 0) continue;
      for (const CacheSpec& spec : o.specs("bf16,int4,oscar2"))
        report.add(
            AttendBench(*backend, shape.kv, spec, depth)
                .run(o.repeats * 3, fmt::format("{}: {} at {}", shape.name, spec.method_text(), depth)));
    }
}

}  // namespace kv2::app
