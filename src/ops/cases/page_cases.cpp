// SPDX-License-Identifier: Apache-2.0
// Cases of append and demote, compared in bytes of the canonical page, and their invariance: however rows
// arrive and whenever pages are demoted, the bytes of a page are a function of its own rows.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cases/page_world.h"
#include "quant/feedback/factors.h"

namespace kv2::cases {
namespace {

int count_rows(const std::vector<Segment>& segments) {
  int n = 0;
  for (const Segment& s : segments) n += s.n_rows;
  return n;
}

/// Values whose rounding is easy to get wrong: ties to even, subnormals, overflow to infinity, signed zero,
/// NaN.
void plant_hard_values(std::vector<float>& rows) {
  const float hard[] = {1.00390625f, 1.01171875f, -1.00390625f, 1e-40f,  -3e-39f,   9.2e-41f,
                        3.4e38f,     3.3961e38f,  -0.0f,        0.0f,    0x1p-126f, 1e30f,
                        INFINITY,    -INFINITY,   NAN,          65504.0f};
  for (size_t i = 0; i < rows.size(); i += 7) rows[i] = hard[(i / 7) % std::size(hard)];
}

struct AppendCase {
  std::string name;
  WorldSpec world;
  std::vector<Segment> segments;
  bool hard_values = false;

  OpCase build() const {
    const int n_rows = count_rows(segments);
    OpCase c{.op = "append",
             .name = fmt::format("{} rows={} kv={} d={}", name, n_rows, world.shape.n_kv_heads,
                                 world.shape.head_dim)};
    c.bytes = 12.0 * n_rows * world.shape.n_kv_heads * world.shape.head_dim;
    c.prepare = [*this](Backend& backend) {
      const auto made = std::make_shared<const PageWorld>(world);
      std::vector<float> k_host = made->batch_keys(segments), v_host = made->batch_values(segments);
      if (hard_values) {
        plant_hard_values(k_host);
        plant_hard_values(v_host);
      }
      const auto k = on_device(backend, k_host), v = on_device(backend, v_host);
      const auto pages = std::make_shared<const DevicePages>(backend, made);
      pages->blank_full();
      const auto views = std::make_shared<const Views>(made->append_views(segments));
      return OpRun{
          [&backend, k, v, pages, views, layer = world.layer] {
            backend.append({layer, k.data(), v.data(), pages->view(), views->views});
          },
          [pages] { return OpOutput{.row_width = 1, .values = {}, .bytes = pages->export_all_full()}; }};
    };
    return c;
  }
};

/// Full pages with rows that try the coder: outliers, constants, zeros, very large and very small values.
void plant_hard_rows(std::vector<std::byte>& page, int head_dim, Random& random) {
  auto* rows = reinterpret_cast<bf16*>(page.data());
  for (int t = 0; t < 2 * kPageTokens; t += 3) {
    const int kind = random.below(9);
    for (int c = 0; c < head_dim; c++) {
      bf16& x = rows[t * head_dim + c];
      if (kind == 0) x = to_bf16(0.75f);
      if (kind == 1) x = to_bf16(c % 2 ? -0.0f : 0.0f);
      if (kind == 2) x = to_bf16(to_float(x) * 3e4f);
      if (kind == 3) x = to_bf16(to_float(x) * 1e-9f);
      if (kind == 4 && c == head_dim / 2) x = to_bf16(-40.0f);
      if (kind == 5) x = to_bf16(c % 3 == 0 ? 1.0f : -1.0f);
      if (kind == 6) x = to_bf16(to_float(x) * 1e6f);
      if (kind == 7 && c % 29 == 3) x = to_bf16(c % 2 ? NAN : -INFINITY);
      if (kind == 8) x = to_bf16(to_float(x) * 1e-39f);
    }
  }
}

/// A coder `feedback` with the tables of a random metric per KV head, in device memory.
struct FeedbackOnDevice {
  DeviceArray<float> f, weight, ones;
  Coder coder;

  FeedbackOnDevice(Backend& backend, const FeedbackFactors& factors, int group)
      : f(on_device(backend, factors.f)),
        weight(on_device(backend, factors.weight)),
        ones(on_device(backend, factors.ones)),
        coder{.kind = CoderKind::Feedback,
              .group = group,
              .tables = {f.data(), weight.data(), ones.data()},
              .search = {.steps = {0.95f, 1.2f}, .n_steps = 2, .refits = 1}} {}

  static FeedbackOnDevice random(Backend& backend, int n_kv_heads, int d, int group, Random& random) {
    std::vector<float> metric;
    for (int h = 0; h < n_kv_heads; h++) {
      const std::vector<float> a = random.normals(static_cast<size_t>(d) * d, 0.05f, 1.0f);
      for (int i = 0; i < d; i++) {
        for (int j = 0; j < d; j++) {
          float sum = 0;  // eight directions that matter, and a floor
          for (int k = 0; k < 8; k++) sum += a[i * d + k] * a[j * d + k];
          metric.push_back(sum + (i == j ? 0.3f : 0.0f));
        }
      }
    }
    return {backend, fit_feedback(metric, identity_transform(n_kv_heads, d), group, 0.02), group};
  }
};

enum class Side : uint8_t { Keys, Values, Both, Neither };

struct DemoteCase {
  int head_dim, n_kv_heads, n_pages, group;
  float clip_k, clip_v;
  bool hard_rows;
  Side feedback = Side::Neither;  // what the coder `feedback` codes; `round` the rest
  FormatCase format = {};         // with a name: other formats than int2

  OpCase build() const {
    OpCase c{.op = "demote",
             .name = fmt::format("pages={} kv={} d={} group={} clips={}/{}{}{} {}", n_pages, n_kv_heads,
                                 head_dim, group, clip_k, clip_v, hard_rows ? " hard rows" : "",
                                 feedback_name(), format.name),
             .other_format = !format.name.empty()};
    const WorldSpec spec{.shape = {2, n_kv_heads, n_kv_heads, head_dim},
                         .layer = 1,
                         .group = group,
                         .rule = {},
                         .n_tokens = {static_cast<int64_t>(n_pages) * kPageTokens},
                         .key_mean = 1.5f,
                         .clip_k = clip_k,
                         .clip_v = clip_v,
                         .stale_nan = false,
                         .seed = static_cast<uint64_t>(head_dim + n_pages),
                         .k = format.k,
                         .v = format.v};
    c.bytes = n_pages * (4.0 * kPageTokens * head_dim * n_kv_heads +
                         static_cast<double>(spec.layout().layer(spec.layer).bytes()));
    c.prepare = [spec, *this](Backend& backend) {
      const auto world = std::make_shared<const PageWorld>(spec);
      const auto pages = std::make_shared<const DevicePages>(backend, world);
      const KvView view = pages->view();
      Random random(head_dim);
      std::vector<Demotion> demotions;
      for (int page = n_pages - 1; page >= 0; page--) {  // no order of pages is promised
        demotions.push_back({world->full_slot(0, page), world->packed_slot(0, page)});
        for (int h = 0; h < n_kv_heads; h++) {
          std::vector<std::byte> bytes = world->canonical_full(0, page, h);
          if (hard_rows) plant_hard_rows(bytes, head_dim, random);
          backend.import_full(view.full + world->full_slot(0, page) * view.layout.full_page_bytes() +
                                  view.layout.full_offset(1, h),
                              head_dim, bytes);
        }
      }
      const bool feedback_k = feedback == Side::Keys || feedback == Side::Both;
      const bool feedback_v = feedback == Side::Values || feedback == Side::Both;
      const LayerLayout part = spec.layout().layer(spec.layer);
      const auto tables = [&](bool used, const SideFormat& side) {
        const int of = used ? side.group : head_dim;
        return FeedbackOnDevice::random(backend, n_kv_heads, head_dim, of, random);
      };
      const auto k = tables(feedback_k, part.k), v = tables(feedback_v, part.v);
      return OpRun{
          [&backend, pages, demotions, k, v, coder_k = feedback_k ? k.coder : spec.coder_k(),
           coder_v = feedback_v ? v.coder : spec.coder_v()] {
            backend.demote({1, coder_k, coder_v, pages->view(), demotions});
          },
          [pages] { return OpOutput{.row_width = 1, .values = {}, .bytes = pages->export_all_packed()}; }};
    };
    return c;
  }

  const char* feedback_name() const {
    switch (feedback) {
      case Side::Keys:
        return " feedback of K";
      case Side::Values:
        return " feedback of V";
      case Side::Both:
        return " feedback";
      case Side::Neither:
        break;
    }
    return "";
  }
};

/// Appends every sequence of the world in steps and demotes complete pages after the step that completed them
/// (or all at the end); the bytes of both pools.
OpOutput append_in_steps(Backend& backend, const WorldSpec& spec,
                         const std::vector<std::vector<Segment>>& steps, bool demote_late) {
  const auto world = std::make_shared<const PageWorld>(spec);
  const DevicePages pages(backend, world);
  pages.blank_full();
  std::vector<Demotion> demotions;
  const auto demote = [&] {
    backend.demote({spec.layer, spec.coder_k(), spec.coder_v(), pages.view(), demotions});
    demotions.clear();
  };
  for (const std::vector<Segment>& step : steps) {
    const auto k = on_device(backend, world->batch_keys(step)),
               v = on_device(backend, world->batch_values(step));
    const Views views = world->append_views(step);
    backend.append({spec.layer, k.data(), v.data(), pages.view(), views.views});
    for (const Segment& s : step)
      for (int64_t page = s.first_pos / kPageTokens; page < (s.first_pos + s.n_rows) / kPageTokens; page++)
        demotions.push_back({world->full_slot(s.sequence, page), world->packed_slot(s.sequence, page)});
    if (!demote_late && !demotions.empty()) demote();
    backend.sync();
  }
  if (!demotions.empty()) demote();
  OpOutput out{.row_width = 1, .values = {}, .bytes = pages.export_all_full()};
  const std::vector<std::byte> packed = pages.export_all_packed();
  out.bytes.insert(out.bytes.end(), packed.begin(), packed.end());
  return out;
}

}  // namespace

std::vector<std::vector<Segment>> chunk_steps(const std::vector<int64_t>& n_tokens, int chunk) {
  std::vector<std::vector<Segment>> steps;
  for (int s = 0; s < static_cast<int>(n_tokens.size()); s++)
    for (int64_t pos = 0; pos < n_tokens[s]; pos += chunk)
      steps.push_back({{s, pos, static_cast<int>(std::min<int64_t>(chunk, n_tokens[s] - pos))}});
  return steps;
}

std::vector<std::vector<Segment>> ragged_steps(const std::vector<int64_t>& n_tokens, uint64_t seed) {
  Random random(seed);
  std::vector<int64_t> done(n_tokens.size(), 0);
  std::vector<std::vector<Segment>> steps;
  for (bool more = true; more;) {
    more = false;
    std::vector<Segment> step;
    for (const int32_t s : random.permutation(static_cast<int>(n_tokens.size()))) {
      const int sizes[] = {0, 1, 1, 2, 5, 64, 101};
      const int n = static_cast<int>(std::min<int64_t>(sizes[random.below(7)], n_tokens[s] - done[s]));
      if (n > 0) step.push_back({s, done[s], n});
      done[s] += n;
      more = more || done[s] < n_tokens[s];
    }
    if (!step.empty()) steps.push_back(std::move(step));
  }
  return steps;
}

std::vector<OpCase> append_cases() {
  std::vector<OpCase> all;
  const auto spec = [](int kv_heads, int d, std::vector<int64_t> n_tokens) {
    return WorldSpec{
        .shape = {3, kv_heads, kv_heads, d}, .layer = 1, .rule = {}, .n_tokens = std::move(n_tokens)};
  };
  for (const int rows : kRowCounts)
    all.push_back(AppendCase{"one sequence from 0", spec(3, 64, {rows}), {{0, 0, rows}}}.build());
  for (const int rows : kRowCounts)
    all.push_back(AppendCase{"one sequence from 61", spec(1, 128, {61 + rows}), {{0, 61, rows}}}.build());
  const std::vector<Segment> ragged = {{2, 127, 1}, {0, 63, 66}, {3, 0, 7}, {1, 64, 64}};
  for (const int d : {64, 80, 96, 112, 128, 192, 256})
    all.push_back(AppendCase{"ragged", spec(2, d, {129, 128, 128, 7}), ragged}.build());
  all.push_back(AppendCase{"hard values", spec(2, 64, {129, 128, 128, 7}), ragged, true}.build());
  return all;
}

std::vector<OpCase> demote_cases() {
  std::vector<OpCase> all;
  for (const int d : {64, 80, 96, 112, 128, 192, 256}) {
    for (const int group : {d, d / 2, 32, 16}) {
      if (d % group != 0 || (group == 32 && d == 64)) continue;
      all.push_back(DemoteCase{d, 2, 3, group, 1.0f, 1.0f, false}.build());
      all.push_back(DemoteCase{d, 2, 3, group, 0.96f, 0.92f, false}.build());
      all.push_back(DemoteCase{d, 1, 2, group, 0.5f, 0.999f, true}.build());
      all.push_back(DemoteCase{d, 1, 2, group, 1.0f, 0.01f, true}.build());
    }
  }
  for (const int d : {64, 80, 96, 128}) {
    all.push_back(DemoteCase{d, 2, 2, d, 0.9f, 0.9f, false, Side::Both}.build());
    all.push_back(DemoteCase{d, 1, 2, d / 2, 0.9f, 0.9f, true, Side::Both}.build());
  }
  all.push_back(DemoteCase{128, 2, 1, 32, 0.9f, 0.9f, false, Side::Both}.build());
  all.push_back(DemoteCase{64, 3, 2, 64, 0.9f, 0.9f, true, Side::Keys}.build());
  all.push_back(DemoteCase{64, 3, 2, 64, 0.9f, 0.9f, true, Side::Values}.build());
  for (const int d : {32, 96, 128}) {
    for (const FormatCase& f : other_formats(d)) {
      all.push_back(DemoteCase{d, 3, 2, 0, 0.96f, 0.92f, false, Side::Neither, f}.build());
      all.push_back(DemoteCase{d, 2, 1, 0, 1.0f, 0.5f, true, Side::Neither, f}.build());
    }
    const FormatCase scale_alone = other_formats(d)[1];
    all.push_back(DemoteCase{d, 2, 1, 0, 1.0f, 0.5f, true, Side::Both, other_formats(d)[0]}.build());
    all.push_back(DemoteCase{d, 2, 1, 0, 1.0f, 0.5f, true, Side::Both, scale_alone}.build());
  }
  all.push_back(DemoteCase{64, 3, 1, 64, 0.96f, 0.92f, false}.build());
  all.push_back(DemoteCase{128, 8, 7, 128, 0.96f, 0.92f, false}.build());
  return all;
}

std::vector<InvarianceCase> append_invariance() {
  std::vector<InvarianceCase> all;
  for (const int d : {64, 96, 128}) {
    const WorldSpec spec{.shape = {2, 2, 2, d},
                         .layer = 1,
                         .group = d,
                         .rule = {},
                         .n_tokens = {320, 1, 63, 64, 65, 200},
                         .key_mean = 0.8f,
                         .seed = 5};
    InvarianceCase c{
        .op = "append", .name = fmt::format("append and demote, six sequences d={}", d), .ways = {}};
    const auto way = [&](const std::string& name, std::vector<std::vector<Segment>> steps, bool late) {
      c.ways.push_back({name, [spec, steps = std::move(steps), late](Backend& backend) {
                          return append_in_steps(backend, spec, steps, late);
                        }});
    };
    for (const int chunk : {512, 1, 7, 64, 100}) {
      way(fmt::format("chunks of {}", chunk), chunk_steps(spec.n_tokens, chunk), false);
      way(fmt::format("chunks of {}, demoted at the end", chunk), chunk_steps(spec.n_tokens, chunk), true);
    }
    way("ragged batches", ragged_steps(spec.n_tokens, 1), false);
    way("other ragged batches", ragged_steps(spec.n_tokens, 2), true);
    all.push_back(std::move(c));
  }
  return all;
}

}  // namespace kv2::cases
