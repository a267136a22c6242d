// SPDX-License-Identifier: Apache-2.0
// Several sequences through a model together: their tokens are packed into forwards of as many rows as the
// model takes, so that weights are read once for all of them. Results do not depend on the packing
// (docs/equality.md).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "model/model.h"

namespace kv2 {

struct BatchPart {
  SequenceId sequence;
  std::span<const int32_t> tokens;  // that follow what the sequence holds
  size_t first_logit_row = 0;       // logits of this token and all later ones are wanted
  int64_t full_until = 0;           // of the sequence's prompt under PrefillPolicy::Exact
};

/// Called for every wanted row, in order within a part. logits [vocab], valid during the call.
using RowLogits = std::function<void(size_t part, size_t row, std::span<const float> logits)>;

/// Feeds all parts, each a different sequence. Errors: OutOfMemory when a sequence cannot grow, Interrupted.
void feed_batch(Model& model, KvCache& cache, std::span<const BatchPart> parts, const RowLogits& on_row);

/// `wanted` with as many of its sequences, at least `least`, as fit in the memory this process may still
/// take. Errors: OutOfMemory when not even those do, with the context that would.
CacheCapacity capacity_that_fits(Model& model, const CacheSpec& spec, CacheCapacity wanted, int least);

}  // namespace kv2
