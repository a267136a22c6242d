// SPDX-License-Identifier: Apache-2.0
// Cases of linear and transform, and the batch invariance of linear.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cases/inputs.h"

namespace kv2::cases {
namespace {

struct LinearCase {
  int n_rows, n_in, n_out;
  bool bias;
  Accumulate accumulate;
  bool has_nan;

  /// Rows of the matrix depend on their index alone, however they are asked for.
  LinearSource source(const std::vector<float>& bias_values) const {
    return {.n_in = n_in,
            .n_out = n_out,
            .fill =
                [n_in = n_in](int row0, int n, float* out) {
                  for (int r = 0; r < n; r++) {
                    Random random(70000 + row0 + r);
                    for (int i = 0; i < n_in; i++)
                      out[static_cast<size_t>(r) * n_in + i] = random.normal(0.01f, 0.05f);
                  }
                },
            .bias = bias_values};
  }
  std::vector<float> input() const {
    Random random(n_in + n_rows);
    std::vector<float> host = random.normals(static_cast<size_t>(n_rows) * n_in, 0.2f, 1.0f);
    if (has_nan)
      host[(n_rows / 2) * static_cast<size_t>(n_in) + n_in / 2] = std::numeric_limits<float>::quiet_NaN();
    return host;
  }
  std::vector<float> bias_values() const {
    return bias ? Random(n_out).normals(n_out, 0.5f, 0.5f) : std::vector<float>();
  }
  std::vector<float> before() const {  // what accumulate adds to
    return Random(n_out + 1).normals(static_cast<size_t>(n_rows) * n_out, -0.3f, 1.0f);
  }

  OpCase build() const {
    OpCase c{.op = "linear",
             .name = fmt::format("rows={} {}x{}{}{}{}", n_rows, n_in, n_out, bias ? " bias" : "",
                                 accumulate == Accumulate::Yes ? " accumulate" : "", has_nan ? " NaN" : "")};
    c.bound = 2e-6;
    c.bf16_bound = 1e-2;  // two roundings of 2^-9 per product, averaging out over the sum
    c.bytes = 2.0 * n_in * n_out + 4.0 * n_rows * (n_in + n_out);
    c.flops = 2.0 * n_rows * n_in * n_out;
    c.prepare = [*this](Backend& backend) {
      const std::vector<float> bias_host = bias_values();
      std::shared_ptr<Linear> weights = backend.make_linear(source(bias_host));
      const auto in = on_device(backend, input()), out = on_device(backend, before());
      return OpRun{
          [&backend, weights, in, out, c = *this] {
            backend.linear(*weights, {in.data(), out.data(), c.n_rows, c.accumulate});
          },
          [out, w = n_out] { return OpOutput{.row_width = w, .values = out.download(), .bytes = {}}; }};
    };
    return c;
  }

  /// All rows, `chunk` at a time.
  OpOutput in_chunks(Backend& backend, int chunk) const {
    const std::vector<float> bias_host = bias_values();
    const auto weights = backend.make_linear(source(bias_host));
    const auto in = on_device(backend, input()), out = on_device(backend, before());
    for (int r = 0; r < n_rows; r += chunk)
      backend.linear(*weights,
                     {in.data() + static_cast<size_t>(r) * n_in, out.data() + static_cast<size_t>(r) * n_out,
                      std::min(chunk, n_rows - r), accumulate});
    return {.row_width = n_out, .values = out.download(), .bytes = {}};
  }
};

struct Shape {
  int n_in, n_out;
};
constexpr Shape kShapes[] = {{576, 576},  {576, 192}, {1536, 576}, {576, 1536},
                             {512, 1024}, {33, 65},   {1, 33},     {577, 31}};
constexpr Shape kVocabulary = {128, 49152};

struct TransformCase {
  int n_rows, n_kv_heads, q_per_kv, head_dim;
  bool transpose, mean, add, in_place;

  OpCase build() const {
    OpCase c{.op = "transform",
             .name = fmt::format("rows={} heads={}x{} d={}{}{}{}{}", n_rows, n_kv_heads, q_per_kv, head_dim,
                                 transpose ? " transpose" : "", mean ? " mean" : "", add ? " add" : "",
                                 in_place ? " in place" : "")};
    const int n_heads = n_kv_heads * q_per_kv;
    c.bound = 1e-6;
    c.bytes = 8.0 * n_rows * n_heads * head_dim + 4.0 * n_kv_heads * head_dim * head_dim;
    c.flops = 2.0 * n_rows * n_heads * head_dim * head_dim;
    c.prepare = [*this, n_heads](Backend& backend) {
      Random random(head_dim * 11 + n_rows);
      const float sigma = 1.0f / std::sqrt(static_cast<float>(head_dim));
      const size_t n = static_cast<size_t>(n_rows) * n_heads * head_dim;
      const size_t d = head_dim, kv = n_kv_heads;
      const auto in = on_device(backend, random.normals(n, 0.7f, 1.0f));
      const auto out = in_place ? in : DeviceArray<float>(backend, n);
      const auto matrix = on_device(backend, random.normals(kv * d * d, 0.1f * sigma, sigma));
      const auto means = on_device(backend, random.normals(kv * d, 0.4f, 0.5f));
      const auto added = on_device(backend, random.normals(kv * d, -0.6f, 0.5f));
      const TransformParams p{in.data(),
                              out.data(),
                              matrix.data(),
                              mean ? means.data() : nullptr,
                              add ? added.data() : nullptr,
                              n_rows,
                              n_heads,
                              n_kv_heads,
                              head_dim,
                              transpose};
      return OpRun{
          [&backend, in, out, matrix, means, added, p] { backend.transform(p); },
          [out, w = head_dim] { return OpOutput{.row_width = w, .values = out.download(), .bytes = {}}; }};
    };
    return c;
  }
};

}  // namespace

std::vector<OpCase> linear_cases() {
  std::vector<OpCase> all;
  for (const Shape& s : kShapes) {
    int i = 0;  // all four mixes of bias and accumulate at every shape
    for (const int rows : kRowCounts) {
      all.push_back(
          LinearCase{rows, s.n_in, s.n_out, i % 2 == 1, i % 4 >= 2 ? Accumulate::Yes : Accumulate::No, false}
              .build());
      i++;
    }
  }
  for (const int rows : {1, 2, 7, 17})
    all.push_back(
        LinearCase{rows, kVocabulary.n_in, kVocabulary.n_out, false, Accumulate::No, false}.build());
  for (const int rows : {1, 5, 70})
    all.push_back(LinearCase{rows, 65, 33, true, Accumulate::No, true}.build());
  return all;
}

std::vector<InvarianceCase> linear_invariance(int largest_rows) {
  std::vector<InvarianceCase> all;
  const auto add = [&](const Shape& s, int rows, bool bias, Accumulate accumulate) {
    InvarianceCase c{.op = "linear", .name = fmt::format("rows={} {}x{}", rows, s.n_in, s.n_out), .ways = {}};
    const LinearCase inputs{rows, s.n_in, s.n_out, bias, accumulate, false};
    for (const int chunk : {rows, 1, 2, 3, 7, 16, 64, 100, 512})
      if (chunk <= rows)
        c.ways.push_back({fmt::format("batches of {}", chunk),
                          [inputs, chunk](Backend& backend) { return inputs.in_chunks(backend, chunk); }});
    all.push_back(std::move(c));
  };
  for (const Shape& s : kShapes)
    add(s, largest_rows, s.n_in % 2 == 1, s.n_out % 2 ? Accumulate::Yes : Accumulate::No);
  add(kVocabulary, std::min(largest_rows, 17), false, Accumulate::No);
  return all;
}

std::vector<OpCase> transform_cases() {
  std::vector<OpCase> all;
  for (const int rows : kRowCounts)
    all.push_back(
        TransformCase{rows, 3, 3, 64, rows % 2 == 0, rows % 3 == 0, rows % 2 == 1, rows % 4 < 2}.build());
  for (int q_per_kv = 1; q_per_kv <= 8; q_per_kv++)
    for (const bool transpose : {false, true})
      all.push_back(
          TransformCase{5, 2, q_per_kv, 64, transpose, !transpose, transpose, q_per_kv % 2 == 0}.build());
  for (const int d : {64, 80, 96, 112, 128, 192, 256})
    for (int mix = 0; mix < 8; mix++)
      all.push_back(
          TransformCase{3, 2, 1, d, (mix & 1) != 0, (mix & 2) != 0, (mix & 4) != 0, mix % 3 == 0}.build());
  return all;
}

}  // namespace kv2::cases
