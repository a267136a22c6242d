// SPDX-License-Identifier: Apache-2.0
// Attention by itself: random sequences, checked against the reference backend first. Pages must come from
// memory, as in a model: where a device empties its caches (DeviceClock) one layer is timed; elsewhere
// attention walks over as many layers as the model has.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "apps/bench.h"
#include "apps/bench_pages.h"
#include "base/check.h"
#include "base/log.h"
#include "ops/device_extras.h"

namespace kv2::app {
namespace {

using cases::DeviceArray;

/// ‖got − want‖ ÷ ‖want‖.
double relative_error(std::span<const float> got, std::span<const float> want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); i++) {
    const double difference = static_cast<double>(got[i]) - want[i];
    error += difference * difference;
    norm += static_cast<double>(want[i]) * want[i];
  }
  return std::sqrt(error / norm);
}

/// Throws where a row of the last sequence's chunk is not, bit for bit, what the same query gives alone.
void compare_alone(Backend& backend, AttendParams p, const BatchSize& size, size_t width,
                   std::span<const float> got) {
  const DeviceArray<float> out(backend, width);
  const SequenceView chunk = p.sequences.back();
  for (const int row : {0, size.n_rows / 3, size.n_rows - 1}) {
    SequenceView alone = chunk;
    alone.first_row = 0, alone.n_rows = 1, alone.first_pos += row;
    AttendParams one = p;
    one.sequences = {&alone, 1};
    one.q += (static_cast<size_t>(chunk.first_row) + row) * width;
    one.out = out.data();
    backend.attend(one);
    const std::vector<float> want = out.download();
    KV2_CHECK(std::memcmp(want.data(), got.data() + (static_cast<size_t>(chunk.first_row) + row) * width,
                          width * sizeof(float)) == 0,
              "row {} of a chunk of {} at {} tokens has other bits than alone", row, size.n_rows,
              size.n_tokens);
  }
}

BenchRow measure(Backend& backend, const KvShape& shape, const CacheSpec& spec, const BatchSize& size,
                 int repeats) {
  const BenchPages pages(backend, shape, spec, size);
  const size_t width = static_cast<size_t>(shape.n_heads) * shape.head_dim;
  const int n_rows = size.n_sequences * size.n_rows;
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  cases::Random random(3);
  const std::vector<float> queries = random.normals(width * n_rows, 0.2f, 1.0f);
  const auto q = cases::on_device(backend, queries);
  const DeviceArray<float> out(backend, queries.size());
  AttendParams params{.layer = 0,
                      .q = q.data(),
                      .out = out.data(),
                      .kv = pages.view(),
                      .sequences = pages.sequences(),
                      .softmax_scale = scale,
                      .soft_cap = 0};
  backend.attend(params);
  BenchRow row{.part = "attend"};
  {
    const std::vector<float> got = out.download();
    for (const int s : {0, size.n_sequences - 1}) {  // the last row of the first and of the last sequence
      const size_t at = (static_cast<size_t>(s + 1) * size.n_rows - 1) * width;
      const std::vector<float> query(queries.begin() + at, queries.begin() + at + width);
      row.error = std::max(
          row.error, relative_error(std::span(got).subspan(at, width), pages.expected(s, query, scale)));
    }
    row.check = "against f64";
    if (size.n_rows > 1) {
      compare_alone(backend, params, size, width, got);
      row.check += ", rows as alone";
    }
  }
  row.times = time_on(backend, repeats, [&] {
    for (params.layer = 0; params.layer < shape.n_layers; params.layer++) backend.attend(params);
  });
  const PageLayout& layout = pages.layout();
  row.bytes = static_cast<double>(pages.n_full() * layout.full_page_bytes() +
                                  pages.n_packed() * layout.packed_page_bytes());
  const double products = 4.0 * width * shape.n_layers;
  const auto of_pages = [&](size_t n) { return products * static_cast<double>(n * kPageTokens); };
  // From codes of 2 bits every product is two byte products; pages of other forms are multiplied in f32.
  if (size.n_rows > 1)
    row.operations.bf16 = products * n_rows * (static_cast<double>(size.n_tokens) - (size.n_rows - 1) / 2.0);
  else if (layout.packs() && layout.layer(0).int2_heads())
    row.operations = {.int8 = 2 * of_pages(pages.n_packed()), .f32 = of_pages(pages.n_full())};
  else
    row.operations.f32 = of_pages(pages.n_packed() + pages.n_full());
  row.shape = {{"kv_heads", shape.n_kv_heads},  {"q_per_kv", shape.q_per_kv()}, {"head_dim", shape.head_dim},
               {"sequences", size.n_sequences}, {"tokens", size.n_tokens},      {"rows", size.n_rows}};
  return row;
}

/// What is asked for; else on a CPU one step at the shape's depths, on a device a few steps and prompts.
std::vector<BatchSize> sizes_of(const BenchOptions& o, const BenchShape& shape, bool cold) {
  if (cold && o.depths.empty() && o.batches.empty() && o.rows.empty())
    return {{32, 32768, 1}, {8, 32768, 1},  {1, 131072, 1},   {1, 32768, 1},
            {1, 8192, 1},   {1, 8192, 512}, {1, 32768, 2048}, {1, 32768, 32768}};
  std::vector<BatchSize> sizes;
  for (const int64_t depth : shape.depths)
    for (const int n : o.batches.empty() ? std::vector{1} : o.batches)
      for (const int rows : o.rows.empty() ? std::vector{1} : o.rows)
        if (depth > 0) sizes.push_back({n, depth, static_cast<int>(std::min<int64_t>(rows, depth))});
  if (sizes.empty())
    throw_error(ErrorCode::BadArgument,
                "attention over 0 tokens is nothing to measure; give a --depth above 0");
  return sizes;
}

}  // namespace

void bench_attend(const BenchOptions& o, BenchReport& report) {
  const auto backend = open_device(o.model.device_options());
  const bool cold = has_clock(*backend);
  for (const BenchShape& shape : bench_shapes(o))
    for (const BatchSize& size : sizes_of(o, shape, cold))
      for (const CacheSpec& spec : o.specs(cold ? "bf16,oscar2,omni2" : "bf16,int4,oscar2")) {
        throw_if_interrupted();
        KvShape kv = shape.kv;
        if (cold) kv.n_layers = 1;
        BenchRow row = measure(*backend, kv, spec, size, size.n_rows > 1 ? o.repeats : o.repeats * 3);
        row.kv = spec.method_text();
        row.name = fmt::format("{}: {} at {}", shape.name, row.kv, size.n_tokens);
        if (size.n_sequences > 1) row.name += fmt::format(", {} sequences", size.n_sequences);
        if (size.n_rows > 1) row.name += fmt::format(", {} rows", size.n_rows);
        report.add(row);
      }
}

}  // namespace kv2::app
