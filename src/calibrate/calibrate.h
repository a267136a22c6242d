// calibrate(): one pass over calibration tokens that streams statistics, a fit, and a clip search on held-out tokens.
// Memory does not grow with the number of tokens. Deterministic for a model, text and seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv2/calibrate.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace kv2 {

struct CalibrateOptions {
  int64_t n_tokens = 8192;     // statistics
  int64_t n_held_out = 1024;   // clip search, disjoint from the statistics
  int64_t window = 1024;       // length of one calibration sequence
  uint64_t seed = 0;           // of self-sampled text
};

/// tokens: the user's text, cut into windows. Throws BadArgument when it is too short (says how many are needed).
Calibration calibrate(Model& model, const std::vector<int32_t>& tokens, const CalibrateOptions& options);
/// Text sampled from the model itself at temperature 1 from several random starts: no data set needed.
std::vector<int32_t> sample_calibration_text(Model& model, const CalibrateOptions& options);

/// Where calibrate writes and run looks by default: <user cache>/calibration/<fingerprint>.safetensors.
std::string default_calibration_path(const std::string& fingerprint);

}  // namespace kv2
