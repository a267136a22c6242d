// SPDX-License-Identifier: Apache-2.0
// The grid that tune() searches: knobs over the text of a CacheSpec. A new parameter is one line in
// tune_grid.cpp; values that a method does not take are no points of its grid.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kv2/cache.h"
#include "ops/params.h"

namespace kv2 {

/// A point: a method's text, values of knobs ("" or absent: as the method has it) and windows.
struct TunePoint {
  std::string method;
  std::map<std::string, std::string> values;
  int sink = 64, recent = 256;
  bool operator==(const TunePoint&) const = default;
};

struct TuneKnob {
  const char* name;                 // of a parameter of --kv
  std::vector<const char*> values;  // "": as the method has it
  bool costs_bits;                  // part of the starts' grid
};
const std::vector<TuneKnob>& tune_knobs();

/// What a budget counts, and which windows may be tried under it.
struct TuneBudget {
  double bits;
  int64_t all_in_tokens;  // 0: history bits
  KvShape shape;

  std::vector<std::pair<int, int>> windows() const;  // sink, recent
  /// The spec of a point; nullopt where the method, the model or the parameters do not go together.
  std::optional<CacheSpec> spec_of(const TunePoint& point) const;
  double bits_of(const CacheSpec& spec) const;
};

/// All points of a method over the knobs that cost bits, dearest first, each with its bits.
struct PricedPoint {
  TunePoint point;
  CacheSpec spec;
  double bits;
};
std::vector<PricedPoint> priced_grid(const std::string& method, const TuneBudget& budget);
/// Points within the budget that differ from `point` in one knob or in the windows.
std::vector<PricedPoint> neighbours(const TunePoint& point, const TuneBudget& budget);

}  // namespace kv2
