// SPDX-License-Identifier: Apache-2.0
// Statistics: an Observer that streams what every method is fitted from, per layer and KV head, in double
// precision. Memory does not grow with the number of tokens; results do not depend on the number of threads,
// and on the chunking only by rounding (c_s_energy excepted, see below). It fits nothing: that is
// quant/rotation and engine/transforms.
#pragma once

#include <cstdint>
#include <vector>

#include "base/threads.h"
#include "kv2/calibrate.h"
#include "model/model.h"

namespace kv2 {

class Statistics final : public Observer {
 public:
  /// The team must outlive this; it may not be one that the model's backend runs on at the same time.
  Statistics(const KvShape& shape, ThreadTeam& team);

  /// C_Q    += q'q     q after RoPE, the query heads of a KV head pooled              (2605.17757, target of
  /// keys) C_S    += o'o     o the attention output before W_o, pooled likewise: o_i = Σ_j S_ij v_j, so that
  /// the mean of o'o
  ///                   is the paper's (1/N) V'S'SV and S itself is never needed
  /// energy += w v'v   w = k M k', M the C_Q of all chunks *before* this one; w is normalised to mean 1 in
  /// the end.
  ///                   The reference code knows all queries first; streaming cannot. The first chunk only
  ///                   feeds M.
  /// and k (after and before RoPE) and v with their means.
  void on_layer(const LayerActivations& a) override;

  int64_t n_tokens() const;  // seen by layer 0
  /// The means over all tokens seen, clips untouched. c_s_energy is v_cov while there was one chunk only.
  LayerCalibration layer(int layer) const;

 private:
  struct Sums {
    int64_t n_tokens = 0;
    std::vector<double> c_q, c_s, energy, k, k_pre, v;  // [n_kv_heads, head_dim, head_dim], lower triangles
    std::vector<double> k_sum, k_pre_sum, v_sum;        // [n_kv_heads, head_dim]
    std::vector<double> energy_weight;                  // [n_kv_heads]
  };
  enum class Part : uint8_t { Q, Out, Energy, K, KPre, V };
  static constexpr int kParts = 6;

  /// Throws BadFile: with the first chunk, not when everything has been measured and is to be saved.
  void require_finite(const Sums& sums, int layer) const;
  void accumulate(const LayerActivations& a, Sums& sums, Part part, int head);

  KvShape shape_;
  ThreadTeam& team_;
  std::vector<Sums> layers_;
  std::vector<double> chunk_c_q_;  // [n_kv_heads, head_dim, head_dim]: joins c_q after the chunk
};

}  // namespace kv2
