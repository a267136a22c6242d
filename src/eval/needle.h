// SPDX-License-Identifier: Apache-2.0
// Exact-match retrieval: does greedy decoding give the answer, token by token, after a shared prefix and a
// question? The answer is teacher-forced: all its tokens must be the arg max after the tokens before them,
// which is the same as decoding greedily and comparing, in one forward.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv2/cache.h"
#include "kv2/calibrate.h"
#include "model/model.h"

namespace kv2 {

struct NeedleQuestion {
  std::vector<int32_t> question;  // token ids behind the prefix, not empty
  std::vector<int32_t> answer;    // token ids that must follow, not empty
};

/// One entry per question, 1 where every answer token was the arg max. The prefix is read once and forked.
/// Errors: BadArgument (nothing to read, longer than the context, out of the vocabulary), OutOfMemory.
std::vector<uint8_t> needle_exact(Model& model, const CacheSpec& spec, const Calibration* calibration,
                                  const std::vector<int32_t>& prefix,
                                  const std::vector<NeedleQuestion>& questions);

}  // namespace kv2
