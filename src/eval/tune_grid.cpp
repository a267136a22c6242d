// SPDX-License-Identifier: Apache-2.0
#include "eval/tune_grid.h"

#include <algorithm>

#include "cache/cache_plan.h"
#include "kv2/error.h"

namespace kv2 {
namespace {

/// Whether this spec is in the list: other values of a knob can be what the method has anyway.
bool contains(const std::vector<PricedPoint>& list, const CacheSpec& spec) {
  return std::any_of(list.begin(), list.end(), [&](const PricedPoint& p) { return p.spec == spec; });
}

void add_if_possible(const TunePoint& point, const TuneBudget& budget, std::vector<PricedPoint>& out) {
  const std::optional<CacheSpec> spec = budget.spec_of(point);
  if (spec && !contains(out, *spec)) out.push_back({point, *spec, budget.bits_of(*spec)});
}

}  // namespace

const std::vector<TuneKnob>& tune_knobs() {
  static const std::vector<TuneKnob> all = {
      {"bits-k", {"", "1", "2", "3", "4"}, true},
      {"bits-v", {"", "1", "2", "3", "4"}, true},
      {"group", {"", "32", "64", "128"}, true},
      {"offset", {"", "off"}, true},
      {"layers",
       {"", "0=int8", "0/1=int8", "0/-1=int8", "0/1/-1/-2=int8", "0/1=k3v3", "0/1/2/3=k3v2"},
       false},
      {"clip", {"", "search", "0.96", "0.92", "0.88", "0.84"}, false},
      {"centre", {"", "k", "off"}, false},
      {"whiten", {"", "0", "0.5", "0.75"}, false},
      {"whiten-v", {"", "0", "0.5"}, false},
      {"damp", {"", "0.005", "0.1"}, false},
  };
  return all;
}

std::vector<std::pair<int, int>> TuneBudget::windows() const {
  if (all_in_tokens == 0) return {{64, 256}, {0, 320}, {128, 192}};
  std::vector<std::pair<int, int>> out;
  for (const int sink : {64, 0, 128})
    for (const int recent : {256, 0, 64, 128, 512}) out.emplace_back(sink, recent);
  return out;
}

std::optional<CacheSpec> TuneBudget::spec_of(const TunePoint& point) const {
  std::string text = point.method;
  for (const auto& [name, value] : point.values) {
    if (value.empty()) continue;
    text += (text.find(':') == std::string::npos ? ":" : ",") + name + "=" + value;
  }
  try {
    CacheSpec spec = CacheSpec::parse(text);
    spec.sink_tokens = point.sink;
    spec.recent_tokens = point.recent;
    spec.validate(shape.head_dim);
    bits_of(spec);
    if (!point.values.contains("group") || point.values.at("group").empty()) return spec;
    TunePoint plain = point;  // a group that the method has anyway: one cache is one candidate
    plain.values.erase("group");
    const std::optional<CacheSpec> same = spec_of(plain);
    const auto layout = [&](const CacheSpec& s) { return PageLayout::of(s, shape).describe(); };
    return same && layout(*same) == layout(spec) ? same : spec;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::BadArgument && e.code() != ErrorCode::Unsupported) throw;
    return std::nullopt;
  }
}

double TuneBudget::bits_of(const CacheSpec& spec) const {
  const int64_t n = std::max<int64_t>(all_in_tokens, kPageTokens);
  const CachePlan plan = plan_cache(spec, shape, {.context_tokens = n, .n_sequences = 1, .chunk_tokens = 64});
  return all_in_tokens == 0 ? plan.layout.history_bits() : plan.all_in_bits(all_in_tokens);
}

std::vector<PricedPoint> priced_grid(const std::string& method, const TuneBudget& budget) {
  std::vector<PricedPoint> out;
  std::vector<TunePoint> points;
  for (const auto& [sink, recent] : budget.windows()) {
    points.push_back({.method = method, .values = {}, .sink = sink, .recent = recent});
    if (budget.all_in_tokens == 0) break;  // windows cost nothing there: the first are the default ones
  }
  for (const TuneKnob& knob : tune_knobs()) {
    if (!knob.costs_bits) continue;
    std::vector<TunePoint> next;
    for (const TunePoint& p : points)
      for (const char* value : knob.values) {
        TunePoint changed = p;
        if (*value) changed.values[knob.name] = value;
        if (budget.spec_of(changed)) next.push_back(std::move(changed));
      }
    points = std::move(next);
  }
  for (const TunePoint& p : points) add_if_possible(p, budget, out);
  std::stable_sort(out.begin(), out.end(),
                   [](const PricedPoint& a, const PricedPoint& b) { return a.bits > b.bits; });
  return out;
}

std::vector<PricedPoint> neighbours(const TunePoint& point, const TuneBudget& budget) {
  std::vector<PricedPoint> out;
  for (const auto& [sink, recent] : budget.windows()) {
    TunePoint changed = point;
    changed.sink = sink, changed.recent = recent;
    if (!(changed == point)) add_if_possible(changed, budget, out);
  }
  for (const TuneKnob& knob : tune_knobs())
    for (const char* value : knob.values) {
      TunePoint changed = point;
      if (*value)
        changed.values[knob.name] = value;
      else
        changed.values.erase(knob.name);
      if (!(changed == point)) add_if_possible(changed, budget, out);
    }
  std::erase_if(out, [&](const PricedPoint& p) { return p.bits > budget.bits + 1e-9; });
  return out;
}

}  // namespace kv2
