// SPDX-License-Identifier: Apache-2.0
// Raw logits of given token ids under one cache, for anyone who wants to compare with another implementation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv2/cache.h"
#include "kv2/calibrate.h"
#include "model/model.h"

namespace kv2 {

/// Writes [n_tokens, vocab] float32 to a .npy file, streamed by chunk; the file exists only when complete.
/// All tokens are one sequence; under PrefillPolicy::Exact all of them are its prompt.
/// Errors: BadArgument (no tokens, more than the context, out of the vocabulary), Io, Interrupted.
void write_logits(Model& model, const CacheSpec& spec, const Calibration* calibration,
                  const std::vector<int32_t>& tokens, const std::string& path);

}  // namespace kv2
