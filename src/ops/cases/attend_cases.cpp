// SPDX-License-Identifier: Apache-2.0
// The list of attend's cases: every boundary of the rule of visibility, ragged batches, shapes, hard numbers;
// and its invariance to chunking, batch and threads.
#include <algorithm>

#include "ops/cases/attend_case.h"

namespace kv2::cases {
namespace {

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

/// Pages in other formats than int2.
void add_formats(std::vector<OpCase>& all) {
  for (const FormatCase& f : other_formats(96)) {
    AttendCase c{f.name, world_of(3, 2, 96, 1, 1, ragged_tokens()), ragged_segments()};
    c.world.k = f.k, c.world.v = f.v;
    all.push_back(c.build());
  }
  // keys per channel where kernels may have an order of pages for them, with means that stand out
  for (const int d : {64, 128})
    for (const FormatCase& f : other_formats(d)) {
      if (f.k.codec != CodecId::Channel || f.k.group != 32 || f.k.kept > 0) continue;
      for (const float mean : {0.5f, 3.0f}) {
        AttendCase c{fmt::format("{}, mean {}", f.name, mean), world_of(2, 4, d, 1, 1, ragged_tokens()),
                     ragged_segments()};
        c.world.k = f.k, c.world.v = f.v;
        c.world.key_mean = mean;
        all.push_back(c.build());
        c.soft_cap = 8.0f;
        c.name += ", soft cap";
        all.push_back(c.build());
      }
      AttendCase c{
          f.name + ", long decode", world_of(1, 3, d, 1, 4, {2600, 2561}), {{0, 2599, 1}, {1, 2560, 1}}};
      c.world.k = f.k, c.world.v = f.v;
      all.push_back(c.build());
      c.nan_query = true;
      c.name = f.name + ", NaN in a query";
      all.push_back(c.build());
    }
}

/// The same queries in chunks, alone, in batches; from first_pos of each sequence on, where the pages before
/// are there.
InvarianceCase in_all_ways(const AttendCase& attend, const std::vector<int64_t>& first_pos) {
  InvarianceCase c{.op = "attend",
                   .name = attend.full_name(),
                   .other_format = attend.world.k.codec != CodecId::None,
                   .ways = {}};
  std::vector<int64_t> lengths = attend.world.n_tokens;
  for (size_t s = 0; s < lengths.size(); s++) lengths[s] -= first_pos[s];
  const auto inputs = std::make_shared<AttendInputs>();  // made by the first way that runs
  const auto way = [&](const std::string& name, std::vector<std::vector<Segment>> steps, Feed feed) {
    for (std::vector<Segment>& step : steps)
      for (Segment& s : step) s.first_pos += first_pos[s.sequence];
    c.ways.push_back({name + (feed == Feed::Appended ? ", appended" : ""),
                      [attend, inputs, steps = std::move(steps), feed](Backend& backend) {
                        if (!inputs->world) *inputs = attend.inputs();
                        return attend.in_steps(backend, *inputs, steps, feed);
                      }});
  };
  constexpr int kWhole = 1 << 20;
  way("whole", chunk_steps(lengths, kWhole), Feed::Imported);
  for (const int chunk : {1, 7, 64, 100})
    way(fmt::format("chunks of {}", chunk), chunk_steps(lengths, chunk), Feed::Imported);
  way("ragged batches", ragged_steps(lengths, 3), Feed::Imported);
  if (std::any_of(first_pos.begin(), first_pos.end(), [](int64_t pos) { return pos > 0; })) return c;
  for (const int chunk : {kWhole, 1, 7, 64, 100})
    way(fmt::format("chunks of {}", chunk), chunk_steps(lengths, chunk), Feed::Appended);
  way("other ragged batches", ragged_steps(lengths, 4), Feed::Appended);
  return c;
}

}  // namespace

std::vector<OpCase> attend_cases() {
  std::vector<OpCase> all;
  add_lengths(all);
  add_shapes(all);
  add_special(all);
  add_formats(all);
  return all;
}

std::vector<InvarianceCase> attend_invariance() {
  std::vector<InvarianceCase> all;
  const std::vector<int64_t> n_tokens = {450, 1, 64, 129, 333}, from_the_start(5, 0);
  const auto add = [&](const AttendCase& c) { all.push_back(in_all_ways(c, from_the_start)); };
  for (const Windows& w : kWindows)
    add({"five sequences", world_of(1, 3, 64, w.sink, w.recent, n_tokens), {}});
  add({"five sequences", world_of(2, 4, 128, 1, 1, n_tokens), {}});
  add({"five sequences", world_of(1, 7, 96, 1, 2, n_tokens), {}});
  add({"five sequences, soft cap", world_of(1, 1, 256, 0, 1, n_tokens), {}, 8.0f});
  AttendCase bf16{"five sequences, bf16 cache", world_of(1, 3, 64, 1, 4, n_tokens), {}};
  bf16.world.group = 0;
  bf16.world.rule.quantized = false;
  add(bf16);
  for (const FormatCase& f : other_formats(64)) {
    AttendCase other{f.name, world_of(2, 2, 64, 1, 1, {330, 1, 129}), {}};
    other.world.k = f.k, other.world.v = f.v;
    all.push_back(in_all_ways(other, std::vector<int64_t>(3, 0)));
  }
  // long enough for runs of pages to be merged
  const AttendCase deep{"the ends of long sequences", world_of(1, 2, 64, 1, 4, {4300, 1100, 2049, 3}), {}};
  all.push_back(in_all_ways(deep, {4130, 1010, 2046, 0}));
  return all;
}

}  // namespace kv2::cases
