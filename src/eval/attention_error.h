// SPDX-License-Identifier: Apache-2.0
// Where a method loses: errors of logits, attention weights and attention output per layer and KV head, on a
// model's own activations, and the errors of the stored keys and values under what reads them.
//
// One bf16 walk over the text. Every method's cache is fed its K and V (eval/stored_rows.h), so the error of
// a layer is its own and not what came down from the layers below. Reads follow the rule of visibility.
// Memory: the caches, the rows of one KV head, and per (method, layer, KV head) a few numbers and two
// matrices: nothing grows with tokens².
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv2/cache.h"
#include "kv2/calibrate.h"
#include "model/model.h"

namespace kv2 {

/// Sums over one KV head (the query heads that read it pooled), over a layer or over all layers. q, k, v, o
/// are bf16's own, k̂ and v̂ what the method stores; s = q·k/√d, S its causal softmax, o = S·v.
struct AttentionError {
  int64_t queries = 0;         // (position, query head) pairs sampled
  int64_t pairs = 0;           // of them with a packed key
  double logit_error2 = 0;     // Σ over pairs (ŝ − s)²
  double logit_spread2 = 0;    // Σ over pairs (s − the query's mean over its packed keys)²
  double weighted_error2 = 0;  // Σ over pairs S·(ŝ − s)²
  double kl = 0;               // Σ over queries KL(S ‖ Ŝ)
  double history_mass = 0;     // Σ over queries of the S that falls on packed keys
  double stored_mass = 0;      // the same of Ŝ
  double output2 = 0;          // Σ ‖o‖²
  double output_error2 = 0;    // Σ ‖Ŝ·v̂ − o‖²
  double output_error_k2 = 0;  // Σ ‖Ŝ·v − o‖²: keys alone
  double output_error_v2 = 0;  // Σ ‖S·v̂ − o‖²: values alone
  double key_error = 0;  // Σ over packed keys (k̂ − k)·C_Q·(k̂ − k)ᵀ/d, C_Q of this text's queries
  double key_energy = 0;    // the same of k − mean
  double value_error = 0;   // Σ over packed values (v̂ − v)·M·(v̂ − v)ᵀ, M = Σ W_oᵀW_o
  double value_energy = 0;  // the same of v − mean

  AttentionError& operator+=(const AttentionError& other);

  // What the tables show; 0 where nothing was packed.
  double logit_rms() const;       // nats
  double logit() const;           // relative to the spread that a query sees
  double weighted_logit() const;  // nats: root of the mean over queries of Σ_j S_j (ŝ_j − s_j)²
  double attention_kl() const;    // nats per query
  double mass() const;            // share of attention that reads codes
  /// ln of the odds of reading codes, Ŝ's over S's. Noise on logits raises it (a mean of exponentials is more
  /// than the exponential of the mean), shrunk keys lower it.
  double mass_shift() const;
  double output() const;  // relative RMS, as are all below
  double output_k() const;
  double output_v() const;
  double key() const;
  double value() const;
};

struct AttentionErrorOptions {
  int64_t max_tokens = 0;  // of the text; 0: all
  int chunk_tokens = 256;
  int query_stride = 8;  // one position in so many asks; keys and values are all judged
  int n_threads = 0;     // of the sums; 0: all cores
};

struct AttentionErrorResult {
  std::string method;  // canonical text
  double history_bits = 0;
  int64_t tokens = 0, first_position = 0;
  int sink = 0, recent = 0;  // tokens
  int n_layers = 0, n_kv_heads = 0;
  std::vector<AttentionError> heads;  // [n_layers, n_kv_heads]

  const AttentionError& head(int layer, int kv_head) const { return heads.at(layer * n_kv_heads + kv_head); }
  AttentionError layer(int layer) const;
  AttentionError all() const;
};

/// Errors: BadArgument (text too short for a history or longer than the context, token out of the vocabulary,
/// calibration missing, PrefillPolicy::Exact, options that are none), Mismatch, OutOfMemory.
std::vector<AttentionErrorResult> measure_attention_error(Model& model, const std::vector<int32_t>& tokens,
                                                          const std::vector<CacheSpec>& specs,
                                                          const Calibration* calibration,
                                                          const AttentionErrorOptions& options);

/// JSON lines, one per layer and KV head: {"judge":"attend", …}.
std::string to_json_lines(const AttentionErrorResult& r);
/// How `to_table` splits a layer.
enum class AttentionRows : uint8_t { Layers, Heads };
std::string to_table(const AttentionErrorResult& r, AttentionRows rows);

}  // namespace kv2
