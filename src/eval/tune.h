// SPDX-License-Identifier: Apache-2.0
// tune(): the cache of least divergence within a budget of bits, by measuring candidates on a text that no
// calibration has seen.
//
// The grid is a table of knobs over the text of a CacheSpec (tune_grid.h), so whatever `--kv` understands can
// be searched. 1. Of every method the dearest points of the grid within the budget are starts. 2. All starts
// are measured in one pass over a short text. 3. From the best one, coordinate by coordinate: each round
// measures every point that differs in one knob, moves to the best and ends when nothing gains 1 %. 4. The
// best few are measured again on a longer text, and the winner of that is returned.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "eval/divergence.h"

namespace kv2 {

struct TuneOptions {
  double bits = 2.5;
  /// 0: `bits` are history bits, and sink and recent keep as many tokens together as by default. Else all-in
  /// bits of a sequence of so many tokens, and windows are searched freely.
  int64_t all_in_tokens = 0;
  int64_t short_tokens = 1024, long_tokens = 4096;  // of the text
  int starts = 6;                                   // of each method
  int rounds = 4, finalists = 3;
  int chunk_tokens = 256, n_threads = 0;
  std::string model = "MODEL";  // as `kv2 calibrate` takes it, for messages
};

struct TuneChoice {
  CacheSpec spec;
  double bits = 0;  // what the budget counts
  DivergenceResult result;
};

struct TuneResult {
  std::vector<TuneChoice> finalists;  // on the longer text, the best first
  int measured = 0;                   // candidates on the short text
  const TuneChoice& best() const { return finalists.front(); }
};

/// methods: texts for `--kv`, each a start of the search; those that need a calibration are left out, with a
/// notice, where it is nullptr. say: one line for people after every step. Errors: BadArgument (no method can
/// be measured; nothing fits the budget: the least that does; text too short; those of measure_divergence).
TuneResult tune(Model& model, const std::vector<int32_t>& tokens, const Calibration* calibration,
                const std::vector<std::string>& methods, const TuneOptions& options,
                const std::function<void(const std::string&)>& say);

/// The options of `kv2 run` that use a spec: "--kv 'kv2:group=32' --sink 64 --recent 256".
std::string run_options(const CacheSpec& spec);

}  // namespace kv2
