// SPDX-License-Identifier: Apache-2.0
// The diagnostic of OScaR (arXiv 2605.19660): token norm imbalance. How much the norms of Q, K and V vary
// from token to token, and what that does to keys that share a scale per channel over a group of tokens,
// before and after a transform and before and after dividing every token by its norm ("omni-token scaling").
// Memory does not grow with the text but for three numbers a page.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv2/cache.h"
#include "model/model.h"
#include "quant/transform.h"

namespace kv2 {

struct TokenNormOptions {
  int64_t max_tokens = 0;  // of the text; 0: all
  int chunk_tokens = 256;  // rounded down to whole groups
  int group = 32;          // tokens that share a scale and offset per channel
  /// Groups begin behind so many tokens (kept in bf16 by a sink): norms are shown of all.
  int64_t skip_tokens = 0;
};

/// Norms of one tensor and layer. A token's norm is the root mean square over heads of its heads' norms, so
/// that the joint norm that OScaR divides keys by is √n_heads of this.
struct NormSummary {
  char tensor = 'k';  // q, k (both after RoPE) or v
  int layer = 0;
  double min = 0, p1 = 0, median = 0, p99 = 0, max = 0;  // min and max exact, the others within 1.1 %
  double variation = 0;                                  // standard deviation ÷ mean
  double head_ratio = 0;                                 // largest ÷ smallest norm of any head of any token
  std::vector<float> first;                              // of the first 16 tokens
  struct Page {
    float min, mean, max;
  };
  std::vector<Page> pages;  // of 64 tokens each

  double ratio() const { return min > 0 ? max / min : 0; }
};

/// Keys coded per channel over groups of tokens with 2 bits (x̂ = step·code + minimum), in one basis, scaled
/// by token or not. Energies relative to Σ‖k‖² over the same tokens.
struct KeyStage {
  std::string transform;
  int layer = 0;
  bool scaled = false;
  double ratio = 0;      // mean over groups of the largest ÷ smallest norm of what is coded
  double bound = 0;      // the paper's lower bound, (max − min)²/(12·9) a token; 0 once tokens are scaled
  double uniform = 0;    // Σ step²/12: what that bound bounds
  double measured = 0;   // ‖k̂ − k‖²
  double per_token = 0;  // mean over tokens of ‖k̂ − k‖²/‖k‖²: every token counts the same
};

/// A basis to try: one transform of keys per layer, or none.
struct NamedTransforms {
  std::string name;
  std::vector<LayerTransforms> layers;
};

struct TokenNormResult {
  int64_t tokens = 0;
  TokenNormOptions options;
  std::vector<NormSummary> norms;  // [n_layers, 3]: q, k, v
  std::vector<KeyStage> stages;    // [n_layers, transforms, 2]: as it is, scaled
};

/// Errors: BadArgument (text shorter than a group behind the skipped tokens or longer than the context, token
/// out of the vocabulary, options that are none).
TokenNormResult measure_token_norms(Model& model, const std::vector<int32_t>& tokens,
                                    const std::vector<NamedTransforms>& transforms,
                                    const TokenNormOptions& options);

/// JSON lines: {"judge":"norms", …} per tensor and layer, {"judge":"norm-stages", …} per stage and layer.
std::string to_json_lines(const TokenNormResult& r);
std::string to_table(const TokenNormResult& r);

}  // namespace kv2
