// calibrate(): one pass over calibration tokens that streams statistics, a fit, and a clip search on held-out
// tokens. Memory does not grow with the number of tokens. Deterministic for a model, text and seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv2/calibrate.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace kv2 {

/// The defaults are 16 sequences of 512: self-sampled text is decoded 16 rows at a time, which costs what one
/// row does (the weights are read once a step), and more text changes nothing measurable (256 tokens gave a
/// KL of 0.0231, 4,096 gave 0.0236).
/// Where the statistics of queries and keys are taken: at the positions that the text had in its window, or
/// moved to positions all over the model's context (uniform_positions.h).
enum class CalibrationPositions : uint8_t { Window, Uniform };

struct CalibrateOptions {
  int64_t n_tokens = 7168;  // statistics
  int64_t n_held_out =
      1024;  // clip search, disjoint from the statistics; 0: no search, the published 0.96 and 0.92
  int64_t window = 512;  // length of one calibration sequence
  CalibrationPositions positions = CalibrationPositions::Uniform;
  uint64_t seed = 0;              // of self-sampled text
  int n_threads = 0;              // of the statistics; 0: all cores
  std::string source = "tokens";  // for the notes: where the text came from
};

/// tokens: the first n_tokens feed the statistics, the n_held_out after them the clip search; the rest is not
/// read. Throws BadArgument when there are too few (says how many are needed and found) or one is no token of
/// the model.
Calibration calibrate(Model& model, const std::vector<int32_t>& tokens, const CalibrateOptions& options);
/// n_tokens + n_held_out tokens sampled from the model itself at temperature 1 from several random starts: no
/// data set needed. Deterministic for a seed.
std::vector<int32_t> sample_calibration_text(Model& model, const CalibrateOptions& options);

/// Where calibrate writes and run looks by default: <user cache>/calibration/<fingerprint>.safetensors.
std::string default_calibration_path(const std::string& fingerprint);

}  // namespace kv2
