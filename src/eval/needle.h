// SPDX-License-Identifier: Apache-2.0
// measure_needles(): needles over depth x length, as a heat map. The task decides whether every depth has a
// haystack of its own (single) or all depths share one (multi-key), which costs one prefill instead of one
// per depth.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/retrieval.h"

namespace kv2 {

struct NeedlePlan {
  RetrievalTask task;            // single, or multi-key (its n_keys becomes the number of depths)
  std::vector<int64_t> lengths;  // tokens, question and answer included
  int n_depths = 10;             // 0 … 1, evenly; one depth is 0.5
  int samples = 1;               // needles of each depth and length
  int64_t answer_tokens = 128;
  uint64_t seed = 0;
};

/// The task of a text for a map of this many depths. Errors: those of parse; BadArgument unless a map can be
/// made of it (single or multi-key, in noise or an essay), and for an n-keys that is not the number of
/// depths.
RetrievalTask depth_task(std::string_view text, int n_depths);

/// The haystacks of one length, and what depth each question is about.
struct NeedleSet : HaystackSet {
  std::vector<double> depths;                 // share of the filling text before the needle
  std::vector<std::vector<size_t>> depth_of;  // [haystack][question], index into depths
};
/// One set per length, also where it is named twice. Errors: BadArgument for other tasks; those of
/// HaystackWriter::make.
std::vector<NeedleSet> make_needles(const HaystackWriter& writer, const NeedlePlan& plan);

/// One cell of a method's map.
struct NeedleCell : RetrievalScore {
  double depth = 0;
};

/// Cells in order of lengths, methods, depths; each method's row of depths is given to on_row as soon as it
/// is there. Errors: BadArgument past the model's context, those
/// of require_history and RetrievalRunner.
std::vector<NeedleCell> measure_needles(Model& model, const std::vector<CacheSpec>& specs,
                                        const Calibration* calibration, const std::vector<NeedleSet>& sets,
                                        const RetrievalOptions& options, const Tokenizer* tokenizer,
                                        const std::function<void(std::span<const NeedleCell>)>& on_row);

/// {"judge": "needle", the score's fields, "depth"}.
std::string to_json(const NeedleCell& c);
/// One map per method: depths down, lengths across, exact and substring in percent.
std::string to_table(const std::vector<NeedleCell>& cells);

}  // namespace kv2
