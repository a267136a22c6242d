// SPDX-License-Identifier: Apache-2.0
// Linears by themselves, at the model's shapes, with random weights of the type that most of its file has, or
// of Q4_1 without a model. As many copies of a matrix take turns as a model has layers, so that weights come
// from where they come from in a decode step. Rows are checked against double precision first.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "apps/bench.h"
#include "base/check.h"
#include "base/float16.h"
#include "formats/weight_codes.h"
#include "ops/cases/inputs.h"
#include "ops/device_extras.h"

namespace kv2::app {
namespace {

/// The type that most weights of a file's matrices have.
std::string most_common_type(const TensorFile& file) {
  std::map<std::string, int64_t> n;
  for (const TensorInfo& t : file.tensors())
    if (t.shape.size() == 2) n[t.type] += t.n_elements();
  if (n.empty()) return "";
  return std::max_element(n.begin(), n.end(), [](auto& a, auto& b) { return a.second < b.second; })->first;
}

/// Random codes, scales and offsets of one matrix. A type of floats, and one whose blocks do not fit n_in,
/// are the same numbers without codes.
class RandomWeights {
 public:
  RandomWeights(int n_in, int n_out, const std::string& type)
      : n_in_(n_in), n_out_(n_out), format_(code_format(type)) {
    if (format_ && n_in % format_->block != 0) format_.reset();
    name_ = format_ ? type : "floats";
    if (format_) block_ = format_->block, bits_ = format_->bits, zero_ = format_->zero;
    if (n_in % block_ != 0) block_ = 1;
    cases::Random random(n_in + n_out);
    const size_t parts = static_cast<size_t>(n_out) * n_in / block_;
    codes_.resize(parts * block_);
    for (uint8_t& c : codes_) c = static_cast<uint8_t>(random.next() & ((1u << bits_) - 1));
    const float size = 0.16f / static_cast<float>(1 << bits_);  // of a scale: weights of about ±0.08
    scale_ = random.normals(parts, size, size / 5);
    offset_ = format_ && !format_->has_offset ? std::vector<float>(parts, 0.0f)
                                              : random.normals(parts, zero_ ? 0.0f : -0.07f, 0.01f);
    for (auto* params : {&scale_, &offset_})
      for (float& x : *params) x = to_float(to_fp16(x));
  }
  const std::string& name() const { return name_; }
  bool coded() const { return format_.has_value(); }
  float at(size_t i) const {
    return scale_[i / block_] * static_cast<float>(codes_[i] - zero_) + offset_[i / block_];
  }
  LinearSource source() const {
    LinearSource s{.n_in = n_in_, .n_out = n_out_};
    s.fill = [this](int row, int n, float* out) {
      const size_t first = static_cast<size_t>(row) * n_in_;
      for (size_t i = 0; i < static_cast<size_t>(n) * n_in_; i++) out[i] = at(first + i);
    };
    if (!format_) return s;
    s.coded = {.bits = bits_,
               .block = block_,
               .zero = zero_,
               .has_offset = format_->has_offset,
               .params_in_fp16 = true};
    s.coded.fill = [this](int row, int n, uint8_t* codes, float* scale, float* offset) {
      const size_t first = static_cast<size_t>(row) * n_in_, count = static_cast<size_t>(n) * n_in_;
      std::copy_n(codes_.data() + first, count, codes);
      std::copy_n(scale_.data() + first / block_, count / block_, scale);
      if (format_->has_offset) std::copy_n(offset_.data() + first / block_, count / block_, offset);
    };
    return s;
  }

 private:
  int n_in_, n_out_;
  std::optional<CodeFormat> format_;
  std::string name_;
  int block_ = 32, bits_ = 4, zero_ = 0;
  std::vector<uint8_t> codes_;
  std::vector<float> scale_, offset_;
};

/// Largest error of a row, of some of its outputs, relative to their norm in double precision.
double error_of(const RandomWeights& w, const std::vector<float>& in, const std::vector<float>& out,
                int n_rows, int n_in, int n_out) {
  double worst = 0;
  for (int r = 0; r < n_rows; r++) {
    double error = 0, norm = 0;
    for (int o = 0; o < n_out; o += std::max(1, n_out / 64)) {
      double want = 0;
      for (int i = 0; i < n_in; i++)
        want += static_cast<double>(w.at(static_cast<size_t>(o) * n_in + i)) *
                in[static_cast<size_t>(r) * n_in + i];
      const double difference = out[static_cast<size_t>(r) * n_out + o] - want;
      error += difference * difference;
      norm += want * want;
    }
    worst = std::max(worst, std::sqrt(error / norm));
  }
  return worst;
}

struct Matrix {
  const char* name;
  int n_in, n_out, copies;
};

void measure(Backend& backend, const BenchOptions& o, const Matrix& m, const std::string& type,
             BenchReport& report) {
  const auto& [name, n_in, n_out, copies] = m;
  const RandomWeights weights(n_in, n_out, type);
  std::vector<std::unique_ptr<Linear>> linears;
  for (int i = 0; i < copies; i++) linears.push_back(backend.make_linear(weights.source()));
  for (const int n_rows : {1, 8, 32, 64, 512}) {
    if (n_rows * static_cast<int64_t>(n_out) > int64_t{1} << 24) continue;  // nobody asks for such logits
    cases::Random random(n_rows);
    const std::vector<float> host = random.normals(static_cast<size_t>(n_rows) * n_in, 0.2f, 1.0f);
    const auto in = cases::on_device(backend, host);
    const cases::DeviceArray<float> out(backend, static_cast<size_t>(n_rows) * n_out);
    const int turns = n_rows > 32 ? std::min(copies, 2) : copies;
    const auto run = [&] {
      for (int i = 0; i < turns; i++) backend.linear(*linears[i], {in.data(), out.data(), n_rows});
    };
    run();
    BenchRow row{
        .part = "linear",
        .name = fmt::format("{}: {} to {}, {} row{}{}", name, n_in, n_out, n_rows, n_rows == 1 ? "" : "s",
                            turns > 1 ? fmt::format(", {} times", turns) : "")};
    row.error = error_of(weights, host, out.download(), n_rows, n_in, n_out);
    row.check = fmt::format("against f64, {}", backend.multiplies_codes() && weights.coded()
                                                   ? weights.name() + " from its codes"
                                                   : backend.linear_precision());
    row.times = time_on(backend, o.repeats, run);
    row.bytes = static_cast<double>(linears.front()->bytes()) * turns;
    // Exact weights in codes: two byte products for each.
    const double products = 2.0 * n_rows * n_in * n_out * turns;
    if (backend.multiplies_codes() && weights.coded())
      row.operations.int8 = 2 * products;
    else if (backend.linear_precision() == "bf16")
      row.operations.bf16 = products;
    else
      row.operations.f32 = products;
    report.add(row);
  }
}

}  // namespace

void bench_linear(const BenchOptions& o, BenchReport& report) {
  const auto backend = open_device(o.model.device_options());
  const BenchShape s = bench_shapes(o).front();
  const int d = s.kv.head_dim, q = s.kv.n_heads * d, kv = s.kv.n_kv_heads * d;
  const int layers = has_clock(*backend) ? 1 : s.kv.n_layers;  // with a clock caches are cold anyway
  const std::string type = o.model.model.empty() ? "Q4_1" : most_common_type(*open_model_file(o.model.model));
  for (const Matrix& m :
       {Matrix{"q, k, v", s.hidden, q + 2 * kv, layers},
        Matrix{"gate, up", s.hidden, 2 * s.intermediate, layers},
        Matrix{"down", s.intermediate, s.hidden, layers}, Matrix{"logits", s.hidden, s.vocab, 1}})
    measure(*backend, o, m, type, report);
}

}  // namespace kv2::app
