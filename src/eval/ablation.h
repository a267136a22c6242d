// SPDX-License-Identifier: Apache-2.0
// The page docs/ablation.md: what each part of oscar2 is worth on a real model, as Markdown, from one command
// (`kv2 eval ablation`). It measures; it judges nothing beyond saying whether the expected order of methods
// held.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/divergence.h"

namespace kv2 {

/// Methods, windows, rotation recipes, sharing, value targets, clips and prefill policies. All tables but the
/// last come from one walk over the text and one set of positions, so that their rows compare. `command`:
/// what made the page, printed on it. Errors: as measure_divergence.
std::string ablation_report(Model& model, const std::vector<int32_t>& tokens, const Calibration& calibration,
                            const DivergenceOptions& options, const std::string& command);

}  // namespace kv2
