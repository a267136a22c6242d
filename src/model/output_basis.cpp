// SPDX-License-Identifier: Apache-2.0
#include "model/output_basis.h"

#include <algorithm>

#include "base/check.h"
#include "base/threads.h"

namespace kv2 {

OutputBasis::OutputBasis(const Transform& v, int n_heads)
    : n_heads_(n_heads), q_per_kv_(n_heads / v.n_kv_heads), d_(v.head_dim), mean_(v.mean) {
  const size_t matrix = d_ * d_;
  KV2_CHECK(v.decode.size() == matrix * v.n_kv_heads && n_heads % v.n_kv_heads == 0,
            "a decode matrix of {} numbers, {} heads of {}", v.decode.size(), n_heads, d_);
  turned_.resize(v.decode.size());
  for (size_t at = 0; at < turned_.size(); at += matrix)
    for (size_t i = 0; i < d_; i++)
      for (size_t j = 0; j < d_; j++) turned_[at + j * d_ + i] = v.decode[at + i * d_ + j];
}

void OutputBasis::absorb(float* rows, int n_rows) const {
  constexpr int kRows = 16;  // of a task: a head's matrix is read from the cache for all of them
  // Backends that fill their weights task by task are on all cores already.
  ThreadTeam team(n_rows > 8 * kRows ? 0 : 1);
  team.run((n_rows + kRows - 1) / kRows, [&](int64_t task, int) {
    const int64_t first = task * kRows, end = std::min<int64_t>(first + kRows, n_rows);
    std::vector<float> sum(d_);
    for (size_t head = 0; head < n_heads_; head++) {
      const float* turned = turned_.data() + head / q_per_kv_ * d_ * d_;
      for (int64_t r = first; r < end; r++) {
        float* w = rows + (r * n_heads_ + head) * d_;
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (size_t j = 0; j < d_; j++)
          for (size_t i = 0; i < d_; i++) sum[i] += w[j] * turned[j * d_ + i];
        std::copy(sum.begin(), sum.end(), w);
      }
    }
  });
}

void OutputBasis::add_mean(const float* rows, int n_rows, float* bias) const {
  for (int r = 0; r < n_rows; r++) {
    double sum = 0;
    for (size_t head = 0; head < n_heads_; head++) {
      const float* w = rows + (r * n_heads_ + head) * d_;
      const float* mean = mean_.data() + head / q_per_kv_ * d_;
      for (size_t j = 0; j < d_; j++) sum += static_cast<double>(w[j]) * mean[j];
    }
    bias[r] += static_cast<float>(sum);
  }
}

}  // namespace kv2
