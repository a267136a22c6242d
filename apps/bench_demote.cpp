// SPDX-License-Identifier: Apache-2.0
// Demotion by itself: random pages into codes of 2 bits, by the coder `round` with OSCAR's clips. Its bytes
// are compared with the specification's first. A decode step pays a 64th of a page's demotion.
#include <fmt/format.h>

#include "apps/bench.h"
#include "base/check.h"
#include "ops/cases/page_world.h"

namespace kv2::app {

void bench_demote(const BenchOptions& o, BenchReport& report) {
  const auto backend = open_device(o.model.device_options());
  for (const BenchShape& shape : bench_shapes(o)) {
    constexpr int kPages = 8;
    KvShape one = shape.kv;
    one.n_layers = 1;
    const cases::WorldSpec spec{
        .shape = one, .group = default_group(one.head_dim), .n_tokens = {kPages * kPageTokens}};
    const auto world = std::make_shared<const cases::PageWorld>(spec);
    const cases::DevicePages pages(*backend, world);
    pages.fill_full();
    std::vector<Demotion> demotions;
    for (int page = 0; page < kPages; page++)
      demotions.push_back({world->full_slot(0, page), world->packed_slot(0, page)});
    const auto run = [&] {
      for (int layer = 0; layer < shape.kv.n_layers; layer++)  // the same layer: pages are read once
        backend->demote({0, spec.coder_k(), spec.coder_v(), pages.view(), demotions});
      backend->sync();
    };
    run();
    const KvView view = pages.view();
    const Int2Layout layout = view.layout.int2(0);
    std::vector<std::byte> got(layout.bytes());
    for (int page = 0; page < kPages; page++)
      for (int h = 0; h < one.n_kv_heads; h++) {
        backend->export_packed(
            view.packed + static_cast<size_t>(world->packed_slot(0, page)) * view.layout.packed_page_bytes() +
                view.layout.packed_offset(0, h),
            layout, got);
        KV2_CHECK(got == world->canonical_packed(0, page, h), "page {} of KV head {} has other bytes", page,
                  h);
      }
    BenchRow row{.part = "demote",
                 .name = fmt::format("{}: {} pages, {} layers", shape.name, kPages, shape.kv.n_layers)};
    row.times = time_of(o.repeats, run);
    row.bytes = static_cast<double>(view.layout.full_page_bytes() + view.layout.packed_page_bytes()) *
                kPages * shape.kv.n_layers;
    row.check = fmt::format("same bytes; {:.1f} us of a decode step on average",
                            row.times.best() * 1e6 / (kPages * kPageTokens));
    report.add(row);
  }
}

}  // namespace kv2::app
