// SPDX-License-Identifier: Apache-2.0
// A backend for tests that keeps K and V in f32 beside the cache and attends over them in double precision;
// all else is forwarded. It takes the cache's bf16 rounding out of a comparison: over 30 layers that rounding
// alone moves logits by a mean KL of 3.5e-5, and turns differences of 1e-7 into 1e-5. One sequence at a time;
// forget() before the next.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "ops/backend.h"

namespace kv2::test {

class F32Attention final : public Backend {
 public:
  explicit F32Attention(Backend& inner) : inner_(inner) {}
  void forget() { rows_.clear(); }

  void append(const AppendParams& p) override {
    const size_t width = static_cast<size_t>(p.kv.layout.shape.n_kv_heads) * p.kv.layout.shape.head_dim;
    for (const SequenceView& s : p.sequences)
      for (int i = 0; i < s.n_rows; i++) {
        Row& row = rows_[{p.layer, s.first_pos + i}];
        row.k.resize(width);
        row.v.resize(width);
        inner_.download(row.k.data(), p.k + (s.first_row + i) * width, width * sizeof(float));
        inner_.download(row.v.data(), p.v + (s.first_row + i) * width, width * sizeof(float));
      }
    inner_.append(p);
  }

  void attend(const AttendParams& p) override {
    const KvShape& shape = p.kv.layout.shape;
    const size_t d = shape.head_dim, width = shape.n_heads * d;
    std::vector<float> q(width), out(width);
    for (const SequenceView& s : p.sequences)
      for (int i = 0; i < s.n_rows; i++) {
        inner_.download(q.data(), p.q + (s.first_row + i) * width, width * sizeof(float));
        for (int h = 0; h < shape.n_heads; h++)
          attend_one(p, s.first_pos + i, q.data() + h * d, (h / shape.q_per_kv()) * d, out.data() + h * d);
        inner_.upload(p.out + (s.first_row + i) * width, out.data(), width * sizeof(float));
      }
  }

  std::string describe() const override { return inner_.describe(); }
  std::string linear_precision() const override { return inner_.linear_precision(); }
  bool multiplies_codes() const override { return inner_.multiplies_codes(); }
  size_t coded_bytes(int n_in, int n_out, const WeightCodes& codes) const override {
    return inner_.coded_bytes(n_in, n_out, codes);
  }
  void* allocate(size_t bytes) override { return inner_.allocate(bytes); }
  void release(void* memory) noexcept override { inner_.release(memory); }
  void upload(void* device, const void* host, size_t bytes) override { inner_.upload(device, host, bytes); }
  void download(void* host, const void* device, size_t bytes) override {
    inner_.download(host, device, bytes);
  }
  void copy(void* to, const void* from, size_t bytes) override { inner_.copy(to, from, bytes); }
  void sync() override { inner_.sync(); }
  std::unique_ptr<Linear> make_linear(const LinearSource& s) override { return inner_.make_linear(s); }
  std::unique_ptr<Linear> make_embedding(const LinearSource& s) override { return inner_.make_embedding(s); }
  size_t scratch_bytes(int n_rows, int max_width, const KvShape& shape) const override {
    return inner_.scratch_bytes(n_rows, max_width, shape);
  }
  void embed(const Linear& table, const EmbedParams& p) override { inner_.embed(table, p); }
  void rms_norm(const RmsNormParams& p) override { inner_.rms_norm(p); }
  void linear(const Linear& weights, const LinearParams& p) override { inner_.linear(weights, p); }
  void rope(const RopeParams& p) override { inner_.rope(p); }
  void transform(const TransformParams& p) override { inner_.transform(p); }
  void demote(const DemoteParams& p) override { inner_.demote(p); }
  void swiglu(const SwigluParams& p) override { inner_.swiglu(p); }
  void export_full(const void* page, int head_dim, std::span<std::byte> canonical) override {
    inner_.export_full(page, head_dim, canonical);
  }
  void import_full(void* page, int head_dim, std::span<const std::byte> canonical) override {
    inner_.import_full(page, head_dim, canonical);
  }
  void export_packed(const void* page, const Int2Layout& layout, std::span<std::byte> canonical) override {
    inner_.export_packed(page, layout, canonical);
  }
  void import_packed(void* page, const Int2Layout& layout, std::span<const std::byte> canonical) override {
    inner_.import_packed(page, layout, canonical);
  }

 private:
  struct Row {
    std::vector<float> k, v;
  };

  void attend_one(const AttendParams& p, int64_t position, const float* q, size_t at, float* out) {
    const size_t d = p.kv.layout.shape.head_dim;
    std::vector<double> score(position + 1), sum(d);
    for (int64_t j = 0; j <= position; j++) {
      const float* k = rows_.at({p.layer, j}).k.data() + at;
      for (size_t c = 0; c < d; c++) score[j] += double{q[c]} * k[c];
      score[j] *= p.softmax_scale;
    }
    const double best = *std::max_element(score.begin(), score.end());
    double total = 0;
    for (int64_t j = 0; j <= position; j++) {
      const double w = std::exp(score[j] - best);
      const float* v = rows_.at({p.layer, j}).v.data() + at;
      for (size_t c = 0; c < d; c++) sum[c] += w * v[c];
      total += w;
    }
    for (size_t c = 0; c < d; c++) out[c] = static_cast<float>(sum[c] / total);
  }

  Backend& inner_;
  std::map<std::pair<int, int64_t>, Row> rows_;
};

}  // namespace kv2::test
