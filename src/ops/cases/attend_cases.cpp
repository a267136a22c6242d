// SPDX-License-Identifier: Apache-2.0
// Cases of attend: every boundary of the rule of visibility, ragged batches, and the invariance of a query to
// chunking, batch and threads.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cases/page_world.h"

namespace kv2::cases {
namespace {

struct AttendCase {
  std::string name;
  WorldSpec world;
  std::vector<Segment> segments;
  float soft_cap = 0, query_sigma = 1.0f;
  bool nan_query = false;

  int n_rows() const {
    int n = 0;
    for (const Segment& s : segments) n += s.n_rows;
    return n;
  }
  size_t row_values() const { return static_cast<size_t>(world.shape.n_heads) * world.shape.head_dim; }
  float softmax_scale() const { return 1.0f / std::sqrt(static_cast<float>(world.shape.head_dim)); }

  /// The query of one position is the same in whatever batch it comes.
  std::vector<float> queries(const std::vector<Segment>& rows) const {
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

  /// In units of the output's norm: sums in f32 round logits by about 2^-24·√d of their largest terms.
  double bound() const {
    const double d = world.shape.head_dim;
    const double q_norm = std::sqrt(d) * std::hypot(0.2, query_sigma),
                 k_norm = std::sqrt(d) * std::hypot(1.2, world.key_mean);
    return 1e-5 + 2e-7 * softmax_scale() * q_norm * k_norm;
  }

  OpCase build() const {
    const KvShape& shape = world.shape;
    OpCase c{.op = "attend",
             .name = fmt::format("{} rows={} heads={}x{} d={} sink={} recent={}", name, n_rows(),
                                 shape.n_kv_heads, shape.q_per_kv(), shape.head_dim, world.rule.sink_pages,
                                 world.rule.recent_pages)};
    c.bound = bound();
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
      const auto q = on_device(backend, host),
                 out = on_device(backend, std::vector<float>(host.size(), 7.0f));
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

  /// The outputs of all positions of all sequences, in order, computed in the given steps.
  OpOutput in_steps(Backend& backend, const std::vector<std::vector<Segment>>& steps) const {
    const auto made = std::make_shared<const PageWorld>(world);
    const DevicePages pages(backend, made);
    pages.fill_full();
    pages.fill_packed();
    std::vector<size_t> first_value(world.n_tokens.size() + 1, 0);
    for (size_t s = 0; s < world.n_tokens.size(); s++)
      first_value[s + 1] = first_value[s] + world.n_tokens[s] * row_values();
    OpOutput all{
        .row_width = world.shape.head_dim, .values = std::vector<float>(first_value.back()), .bytes = {}};
    for (const std::vector<Segment>& step : steps) {
      const auto q = on_device(backend, queries(step));
      const DeviceArray<float> out(backend, q.size());
      const Views views = made->views(step);
      backend.attend(
          {world.layer, q.data(), out.data(), pages.view(), views.views, softmax_scale(), soft_cap});
      const std::vector<float> host = out.download();
      auto from = host.begin();
      for (const Segment& s : step) {
        const auto n = static_cast<std::ptrdiff_t>(s.n_rows * row_values());
        std::copy(from, from + n, all.values.begin() + first_value[s.sequence] + s.first_pos * row_values());
        from += n;
      }
    }
    return all;
  }
};

WorldSpec world_of(int kv_heads, int q_per_kv, int d, int sink, int recent, std::vector<int64_t> n_tokens) {
  return {.shape = {2, kv_heads * q_per_kv, kv_heads, d},
          .layer = 1,
          .group = d <= 128 ? d : 128,
          .rule = {sink, recent, true},
          .n_tokens = std::move(n_tokens),
          .seed = static_cast<uint64_t>(d + sink * 10 + recent)};
}

struct Windows {
  int sink, recent;
};
constexpr Windows kWindows[] = {{0, 0}, {1, 0}, {0, 4}, {1, 4}, {2, 8}};

/// Whole prompts of every length around a boundary: empty history, n < sink, n < sink + recent, multiples of
/// 64 ± 1.
void add_lengths(std::vector<OpCase>& all) {
  for (const Windows& w : kWindows)
    for (const int64_t n : {1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193})
      all.push_back(
          AttendCase{"prompt", world_of(1, 3, 64, w.sink, w.recent, {n}), {{0, 0, static_cast<int>(n)}}}
              .build());
  for (const int64_t n : {319, 320, 321, 383, 384, 385, 449})
    all.push_back(AttendCase{"prompt", world_of(1, 3, 64, 1, 4, {n}), {{0, 0, static_cast<int>(n)}}}.build());
  // one decode row at each boundary of a longer history
  for (const Windows& w : kWindows)
    for (const int64_t pos : {639, 640, 641, 703, 704, 705, 767})
      all.push_back(AttendCase{
          fmt::format("decode at {}", pos),
          world_of(2, 4, 128, w.sink, w.recent, {pos + 1}),
          {{0, pos, 1}}}.build());
}

/// Ragged batches: decode rows, prompt chunks whose early queries read a page full and late ones packed, new
/// prompts.
std::vector<Segment> ragged_segments() {
  return {{1, 700, 1}, {0, 300, 150}, {2, 0, 5}, {3, 447, 2}, {4, 63, 66}, {5, 830, 1}};
}
std::vector<int64_t> ragged_tokens() {
  return {450, 701, 5, 449, 129, 831};
}

void add_shapes(std::vector<OpCase>& all) {
  const struct {
    int kv_heads, q_per_kv, d;
  } shapes[] = {{3, 1, 64}, {3, 3, 64},  {2, 4, 64},  {1, 7, 64},  {2, 4, 80},
                {1, 7, 96}, {2, 1, 128}, {1, 3, 128}, {1, 7, 128}, {1, 3, 256}};
  for (const auto& s : shapes)
    all.push_back(
        AttendCase{"ragged", world_of(s.kv_heads, s.q_per_kv, s.d, 1, 4, ragged_tokens()), ragged_segments()}
            .build());
  for (const Windows& w : kWindows)
    all.push_back(
        AttendCase{"ragged", world_of(1, 3, 64, w.sink, w.recent, ragged_tokens()), ragged_segments()}
            .build());
  for (const int rows : kRowCounts)
    all.push_back(
        AttendCase{"chunk at 321", world_of(1, 3, 64, 1, 2, {321 + rows}), {{0, 321, rows}}}.build());
  AttendCase small_groups{"group 16", world_of(2, 2, 64, 1, 1, ragged_tokens()), ragged_segments()};
  small_groups.world.group = 16;
  all.push_back(small_groups.build());
}

void add_special(std::vector<OpCase>& all) {
  const AttendCase base{"", world_of(2, 3, 64, 1, 2, ragged_tokens()), ragged_segments()};
  AttendCase c = base;
  c.name = "bf16 cache";
  c.world.group = 0;
  c.world.rule.quantized = false;
  all.push_back(c.build());
  c = base;
  c.name = "full until 400, 9999 and 100";  // inside a chunk, past it, before it
  c.segments[1].full_until = 400;
  c.segments[3].full_until = 9999;
  c.segments[0].full_until = 100;
  all.push_back(c.build());
  c = base;
  c.name = "soft cap 5";
  c.soft_cap = 5.0f;
  c.query_sigma = 3.0f;
  all.push_back(c.build());
  c = {"soft cap 5, short prompt", world_of(1, 2, 64, 0, 0, {70}), {{0, 0, 70}}, 5.0f, 3.0f};
  all.push_back(c.build());
  for (const float mean : {4.0f, 12.0f}) {
    c = base;
    c.name = fmt::format("keys with mean {}", mean);
    c.world.key_mean = mean;
    all.push_back(c.build());
  }
  c = base;
  c.name = "sharp softmax";
  c.query_sigma = 12.0f;
  all.push_back(c.build());
  c = base;
  c.name = "stale rows are NaN";  // a recycled page's old rows may hold anything
  c.world.stale_nan = true;
  all.push_back(c.build());
  c = base;
  c.name = "NaN in a query";
  c.nan_query = true;
  all.push_back(c.build());
  // many pages, so that runs of pages are merged: 40 pages and a bit
  for (const int q_per_kv : {1, 4})
    all.push_back(AttendCase{
        "long decode", world_of(1, q_per_kv, 128, 1, 4, {2600, 2561}), {{0, 2599, 1}, {1, 2560, 1}}}
                      .build());
  all.push_back(AttendCase{"long chunk", world_of(1, 2, 64, 1, 4, {2600}), {{0, 2530, 70}}}.build());
}

}  // namespace

std::vector<OpCase> attend_cases() {
  std::vector<OpCase> all;
  add_lengths(all);
  add_shapes(all);
  add_special(all);
  return all;
}

std::vector<InvarianceCase> attend_invariance() {
  std::vector<InvarianceCase> all;
  const auto add = [&](const AttendCase& inputs) {
    InvarianceCase c{
        .op = "attend",
        .name = fmt::format("{} d={} heads={}x{} sink={} recent={}", inputs.name, inputs.world.shape.head_dim,
                            inputs.world.shape.n_kv_heads, inputs.world.shape.q_per_kv(),
                            inputs.world.rule.sink_pages, inputs.world.rule.recent_pages),
        .ways = {}};
    const auto way = [&](const std::string& name, std::vector<std::vector<Segment>> steps) {
      c.ways.push_back({name, [inputs, steps = std::move(steps)](Backend& backend) {
                          return inputs.in_steps(backend, steps);
                        }});
    };
    way("whole", chunk_steps(inputs.world.n_tokens, 100000));
    for (const int chunk : {1, 7, 64, 100})
      way(fmt::format("chunks of {}", chunk), chunk_steps(inputs.world.n_tokens, chunk));
    way("ragged batches", ragged_steps(inputs.world.n_tokens, 3));
    way("other ragged batches", ragged_steps(inputs.world.n_tokens, 4));
    all.push_back(std::move(c));
  };
  const std::vector<int64_t> n_tokens = {450, 1, 64, 129, 333};
  for (const Windows& w : kWindows)
    add({"five sequences", world_of(1, 3, 64, w.sink, w.recent, n_tokens), {}});
  add({"five sequences", world_of(2, 4, 128, 1, 1, n_tokens), {}});
  add({"five sequences", world_of(1, 7, 96, 1, 2, n_tokens), {}});
  add({"five sequences, soft cap", world_of(1, 1, 256, 0, 1, n_tokens), {}, 8.0f});
  AttendCase bf16{"five sequences, bf16 cache", world_of(1, 3, 64, 1, 4, n_tokens), {}};
  bf16.world.group = 0;
  bf16.world.rule.quantized = false;
  add(bf16);
  return all;
}

}  // namespace kv2::cases
