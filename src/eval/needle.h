// SPDX-License-Identifier: Apache-2.0
// measure_needles(): needles over depth x length, as a heat map. The task decides whether every depth has a
// haystack of its own (single) or all depths share one (multi-key), which costs one prefill instead of one
// per depth.
#pragma once

#include <functional>
#include <string>
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

/// Throws BadArgument unless a map of depths can be made of the task: single or multi-key, in noise or an
/// essay.
void require_depth_task(const RetrievalTask& task);

/// One cell of a method's map. Shares are 0 to 1.
struct NeedleCell {
  std::string method;  // canonical text
  double history_bits = 0;
  std::string task;
  int64_t length = 0;
  double depth = 0;  // share of the filling text before the needle
  int64_t questions = 0;
  double exact = 0;
  double substring = -1;  // -1: not measured
  int sink = 0, recent = 0;
  std::string prefill;
  uint64_t seed = 0;
};

/// Cells in order of lengths, methods, depths; each method's row of depths is given to on_row as soon as it
/// is there. Errors: BadArgument for other tasks and those of RetrievalRunner and HaystackWriter::make.
std::vector<NeedleCell> measure_needles(Model& model, const std::vector<CacheSpec>& specs,
                                        const Calibration* calibration, const HaystackWriter& writer,
                                        const NeedlePlan& plan, const RetrievalOptions& options,
                                        const Tokenizer* tokenizer,
                                        const std::function<void(std::span<const NeedleCell>)>& on_row);

/// {"judge": "needle", the fields named as above}; substring is left out where it was not measured.
std::string to_json(const NeedleCell& c);
/// One map per method: depths down, lengths across, exact and substring in percent.
std::string to_table(const std::vector<NeedleCell>& cells);

}  // namespace kv2
