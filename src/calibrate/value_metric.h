// SPDX-License-Identifier: Apache-2.0
// What reads values: an error e of a value row of KV head h, seen through the attention weights, reaches the
// residual stream as W_o,r·e in each query head r of h. So its square is e·M·eᵀ summed over positions, with
// M_h = Σ_r W_o,rᵀ·W_o,r. Of the weights alone; no text is needed.
#pragma once

#include <vector>

#include "base/threads.h"
#include "model/model.h"

namespace kv2 {

/// M of one layer, [n_kv_heads, head_dim, head_dim], summed in double.
std::vector<float> value_metric(const Model& model, int layer, ThreadTeam& team);

}  // namespace kv2
