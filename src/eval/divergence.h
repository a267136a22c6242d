// Perplexity and KL divergence of several methods in one pass over a text: bf16 and every method walk the
// same chunks, logits are compared and forgotten. Same weights, same linears; only the cache differs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "eval/block_means.h"
#include "kv2/cache.h"
#include "kv2/calibrate.h"
#include "model/model.h"

namespace kv2 {

struct DivergenceOptions {
  int64_t window = 0;      // tokens; 0: the model's context or the whole text; never longer than the context
  int64_t max_tokens = 0;  // of the text; 0: all
  /// A window begins so many tokens after the one before; each position is scored in the first window that
  /// has it, so behind the first window every one of them has at least window − stride tokens before it. 0:
  /// the window, no overlap.
  int64_t stride = 0;
  int chunk_tokens = 256;
  int n_threads = 0;  // of the comparison; 0: all cores
};

/// Positions [begin, end) of their windows, those of them that are scored for KL.
struct DivergenceBucket {
  int64_t begin = 0, end = 0, tokens = 0, flips = 0;
  double kl_mean = 0, kl_max = 0;
};

/// One method's row. KL is KL(bf16 ‖ method) in nats, over positions whose history is not empty. All rows of
/// one call use one set of positions, those where every method has a history, so that rows compare. With
/// PrefillPolicy::Exact in a call the first half of each window is the prompt and positions after it are
/// scored.
struct DivergenceResult {
  std::string method;  // canonical text
  double history_bits = 0, all_in_bits = 0;
  size_t kv_bytes = 0;    // all-in bytes of one sequence of a window's tokens
  int64_t tokens = 0;     // scored positions of ppl: 1 … n-1 of each window
  int64_t kl_tokens = 0;  // scored positions of KL
  double ppl = 0;
  double kl_mean = 0, kl_median = 0, kl_p99 = 0, kl_max = 0, top1 = 0;  // top1: share of equal arg max
  double kl_se = 0, top1_se = 0;  // standard errors (eval/block_means.h); NaN where the text is too short
  std::vector<double> kl_blocks;  // means of runs of 256 scored positions, for other paired comparisons
  /// The method of least KL among the others of this call that keep as many history bits or fewer; "": none.
  std::string rival;
  PairedDifference over_rival;      // kl_mean less the rival's: below 0 where this method is better
  int64_t flips = 0;                // scored positions whose arg max differs
  int64_t windows = 0, stride = 0;  // number of windows walked, tokens between their beginnings
  /// By position: [0, 512), then every doubling; only those that have a scored position.
  std::vector<DivergenceBucket> buckets;
  int sink = 0, recent = 0;  // tokens
  std::string prefill;       // "windowed" or "exact"
};

/// Errors: BadArgument (text too short for a history: the length needed; window longer than the context;
/// token out of the vocabulary; calibration missing), Mismatch (calibration of another model).
std::vector<DivergenceResult> measure_divergence(Model& model, const std::vector<int32_t>& tokens,
                                                 const std::vector<CacheSpec>& specs,
                                                 const Calibration* calibration,
                                                 const DivergenceOptions& options);

/// One JSON object per result, the fields named as above.
std::string to_json(const DivergenceResult& r);
/// A table for people, KL and flips by position, and every method beside its rival ("" where none has one).
std::string to_table(const std::vector<DivergenceResult>& results);
std::string to_bucket_table(const std::vector<DivergenceResult>& results);
std::string to_rival_table(const std::vector<DivergenceResult>& results);

}  // namespace kv2
