// SPDX-License-Identifier: Apache-2.0
#include "ops/cases/attend_case.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kv2::cases {

float AttendCase::softmax_scale() const {
  return 1.0f / std::sqrt(static_cast<float>(world.shape.head_dim));
}

std::string AttendCase::full_name() const {
  return fmt::format("{} heads={}x{} d={} sink={} recent={}", name, world.shape.n_kv_heads,
                     world.shape.q_per_kv(), world.shape.head_dim, world.rule.sink_pages,
                     world.rule.recent_pages);
}

std::vector<float> AttendCase::queries(const std::vector<Segment>& rows) const {
  std::vector<float> q;
  for (const Segment& s : rows) {
    for (int64_t pos = s.first_pos; pos < s.first_pos + s.n_rows; pos++) {
      Random random(static_cast<uint64_t>(s.sequence) * 1000003 + pos);
      const std::vector<float> row = random.normals(row_values(), 0.2f, query_sigma);
      q.insert(q.end(), row.begin(), row.end());
    }
  }
  return q;
}

/// In units of the output's norm: sums in f32 round logits by about 2^-24·√d of their largest terms; a
/// backend that multiplies codes takes queries and softmax weights as 16-bit fixed point, which is 2^-17 of
/// the largest element.
double AttendCase::bound() const {
  const double d = world.shape.head_dim;
  const double q_norm = std::sqrt(d) * std::hypot(0.2, query_sigma),
               k_norm = std::sqrt(d) * std::hypot(1.2, world.key_mean);
  return 1e-5 + (world.group > 0 ? 1e-5 : 2e-7) * softmax_scale() * q_norm * k_norm;
}

OpCase AttendCase::build() const {
  const KvShape& shape = world.shape;
  int n_rows = 0;
  for (const Segment& s : segments) n_rows += s.n_rows;
  OpCase c{.op = "attend", .name = fmt::format("{} rows={}", full_name(), n_rows)};
  c.bound = bound();
  c.other_format = world.k.codec != CodecId::None;
  const double token_bytes = world.layout().history_bits() / 8 * 2 * shape.n_kv_heads * shape.head_dim;
  for (const Segment& s : segments) {
    c.bytes += token_bytes * static_cast<double>(s.first_pos + s.n_rows) + 8.0 * s.n_rows * row_values();
    c.flops += 4.0 * row_values() * s.n_rows * (static_cast<double>(s.first_pos) + 0.5 * (s.n_rows + 1));
  }
  c.prepare = [*this](Backend& backend) {
    const auto made = std::make_shared<const PageWorld>(world);
    const auto pages = std::make_shared<const DevicePages>(backend, made);
    pages->fill_full();
    pages->fill_packed();
    std::vector<float> host = queries(segments);
    if (nan_query) host[host.size() / 2] = std::numeric_limits<float>::quiet_NaN();
    const auto q = on_device(backend, host), out = on_device(backend, std::vector<float>(host.size(), 7.0f));
    const auto views = std::make_shared<const Views>(made->views(segments));
    return OpRun{[&backend, q, out, pages, views, c = *this] {
                   backend.attend({c.world.layer, q.data(), out.data(), pages->view(), views->views,
                                   c.softmax_scale(), c.soft_cap});
                 },
                 [out, w = world.shape.head_dim] {
                   return OpOutput{.row_width = w, .values = out.download(), .bytes = {}};
                 }};
  };
  return c;
}

/// Appends the rows of a step, then demotes the pages that its queries read packed and that are not packed
/// yet.
void AttendCase::append_and_demote(Backend& backend, const PageWorld& made, const DevicePages& pages,
                                   const std::vector<Segment>& step, std::set<int32_t>& packed_slots) const {
  const auto k = on_device(backend, made.batch_keys(step)), v = on_device(backend, made.batch_values(step));
  const Views writes = made.append_views(step), reads = made.views(step);
  backend.append({world.layer, k.data(), v.data(), pages.view(), writes.views});
  std::vector<Demotion> demotions;
  for (size_t i = 0; i < step.size(); i++) {
    const std::vector<int32_t>& packed = reads.tables[2 * i + 1];
    for (int page = 0; page < static_cast<int>(packed.size()); page++)
      if (packed[page] >= 0 && packed_slots.insert(packed[page]).second)
        demotions.push_back({made.full_slot(step[i].sequence, page), packed[page]});
  }
  if (!demotions.empty())
    backend.demote({world.layer, world.coder_k(), world.coder_v(), pages.view(), demotions});
  backend.sync();  // k and v are freed here
}

AttendInputs AttendCase::inputs() const {
  std::vector<Segment> all;
  for (size_t s = 0; s < world.n_tokens.size(); s++)
    all.push_back({static_cast<int>(s), 0, static_cast<int>(world.n_tokens[s])});
  return {std::make_shared<const PageWorld>(world), queries(all)};
}

OpOutput AttendCase::in_steps(Backend& backend, const AttendInputs& inputs,
                              const std::vector<std::vector<Segment>>& steps, Feed feed) const {
  const PageWorld& made = *inputs.world;
  const DevicePages pages(backend, inputs.world);
  if (feed == Feed::Imported) {
    pages.fill_full();
    pages.fill_packed();
  } else {
    pages.blank_full();
  }
  std::set<int32_t> packed_slots;
  std::vector<int64_t> first_row(world.n_tokens.size() + 1, 0);
  for (size_t s = 0; s < world.n_tokens.size(); s++) first_row[s + 1] = first_row[s] + world.n_tokens[s];
  OpOutput all{.row_width = world.shape.head_dim,
               .values = std::vector<float>(first_row.back() * row_values()),
               .bytes = {}};
  for (const std::vector<Segment>& step : steps) {
    std::vector<float> host;
    for (const Segment& s : step) {
      const auto from = inputs.queries.begin() + (first_row[s.sequence] + s.first_pos) * row_values();
      host.insert(host.end(), from, from + s.n_rows * row_values());
    }
    const auto q = on_device(backend, host);
    const DeviceArray<float> out(backend, q.size());
    const Views views = made.views(step);
    if (feed == Feed::Appended) append_and_demote(backend, made, pages, step, packed_slots);
    backend.attend({world.layer, q.data(), out.data(), pages.view(), views.views, softmax_scale(), soft_cap});
    host = out.download();
    auto from = host.begin();
    for (const Segment& s : step) {
      const auto n = static_cast<std::ptrdiff_t>(s.n_rows * row_values());
      std::copy(from, from + n, all.values.begin() + (first_row[s.sequence] + s.first_pos) * row_values());
      from += n;
    }
  }
  return all;
}

}  // namespace kv2::cases
