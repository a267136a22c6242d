// SPDX-License-Identifier: Apache-2.0
// Sequence: one request's tokens, its sampling state and its place in the cache. Bookkeeping only; it runs
// nothing.
#pragma once

#include <algorithm>
#include <optional>

#include "engine/engine.h"

namespace kv2 {

struct Sequence {
  Sequence(RequestId request_id, const GenerateRequest& r, std::vector<int32_t> prompt_tokens)
      : id(request_id),
        request(r),
        sampler(r.sampling),
        tokens(std::move(prompt_tokens)),
        n_prompt(tokens.size()) {}

  RequestId id;
  GenerateRequest request;
  Sampler sampler;
  std::vector<int32_t> tokens;  // prompt, then answer
  int64_t n_prompt;
  std::optional<SequenceId> cache;  // while it runs
  int64_t n_cached = 0;             // tokens whose K and V are in the cache
  int64_t n_reused = 0;             // of those, found there at admission

  int64_t pending() const { return static_cast<int64_t>(tokens.size()) - n_cached; }
  int64_t n_answer() const { return static_cast<int64_t>(tokens.size()) - n_prompt; }

  bool ends_with(int32_t token, const std::vector<int32_t>& model_eos) const {
    const auto has = [&](const std::vector<int32_t>& ids) {
      return std::find(ids.begin(), ids.end(), token) != ids.end();
    };
    return !request.ignore_eos && (has(model_eos) || has(request.stop_tokens));
  }

  /// Takes a sampled token and says whether the text ends with it.
  FinishReason push(int32_t token, const std::vector<int32_t>& model_eos, int64_t context) {
    tokens.push_back(token);
    if (ends_with(token, model_eos)) return FinishReason::EndOfText;
    if (n_answer() >= request.max_tokens) return FinishReason::Length;
    if (static_cast<int64_t>(tokens.size()) >= context) return FinishReason::Context;
    return FinishReason::None;
  }
};

}  // namespace kv2
