// SPDX-License-Identifier: Apache-2.0
// The bases that `eval norms` tries: none, Hadamard and, where there is a calibration, its rotation.
#pragma once

#include <vector>

#include "apps/options.h"
#include "eval/token_norms.h"

namespace kv2::app {

/// path: of the model, for a message.
std::vector<NamedTransforms> norm_bases(const Model& model, const std::optional<Calibration>& calibration,
                                        const std::string& path);

}  // namespace kv2::app
