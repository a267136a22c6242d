// SPDX-License-Identifier: Apache-2.0
// Cases of the ops that work on each row by itself: embed, rms_norm, swiglu, rope.
#include <cmath>
#include <limits>

#include "base/float16.h"
#include "ops/cases/inputs.h"

namespace kv2::cases {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct EmbedCase {
  int n_rows, vocab, width;

  OpCase build() const {
    OpCase c{.op = "embed", .name = fmt::format("rows={} vocab={} width={}", n_rows, vocab, width)};
    c.bytes = 4.0 * n_rows * width;
    c.prepare = [*this](Backend& backend) {
      // Values are bf16 already: a table kept in bf16 or in f32 gives the same rows, so the bound is 0.
      const LinearSource source{width, vocab, [w = width](int row0, int n, float* out) {
                                  for (int r = 0; r < n; r++) {
                                    Random random(900 + row0 + r);
                                    for (int i = 0; i < w; i++)
                                      out[r * w + i] = to_float(to_bf16(random.normal(0.5f, 1.0f)));
                                  }
                                }};
      std::shared_ptr<Linear> table = backend.make_embedding(source);
      DeviceArray<float> out(backend, static_cast<size_t>(n_rows) * width);
      std::vector<int32_t> tokens(n_rows);
      Random random(n_rows);
      for (int32_t& t : tokens) t = random.below(vocab);
      tokens.front() = vocab - 1;
      tokens.back() = 0;
      return OpRun{
          [&backend, table, out, tokens, n = n_rows] {
            backend.embed(*table, {.tokens = tokens.data(), .out = out.data(), .n_rows = n});
          },
          [out, w = width] { return OpOutput{.row_width = w, .values = out.download(), .bytes = {}}; }};
    };
    return c;
  }
};

struct RmsNormCase {
  int n_rows, width;
  float sigma, epsilon;
  bool in_place, has_nan;

  OpCase build() const {
    OpCase c{.op = "rms_norm",
             .name = fmt::format("rows={} width={} sigma={} eps={}{}{}", n_rows, width, sigma, epsilon,
                                 in_place ? " in place" : "", has_nan ? " NaN" : "")};
    c.bound = 4e-7;
    c.bytes = 8.0 * n_rows * width;
    c.flops = 4.0 * n_rows * width;
    c.prepare = [*this](Backend& backend) {
      Random random(width * 7 + n_rows);
      std::vector<float> host = random.normals(static_cast<size_t>(n_rows) * width, 0.3f * sigma, sigma);
      if (has_nan) host[(n_rows / 2) * static_cast<size_t>(width) + width / 2] = kNan;
      const auto in = on_device(backend, host),
                 weight = on_device(backend, random.normals(width, 1.0f, 0.4f));
      const auto out = in_place ? in : DeviceArray<float>(backend, host.size());
      const RmsNormParams p{in.data(), weight.data(), out.data(), n_rows, width, epsilon};
      return OpRun{
          [&backend, in, weight, out, p] { backend.rms_norm(p); },
          [out, w = width] { return OpOutput{.row_width = w, .values = out.download(), .bytes = {}}; }};
    };
    return c;
  }
};

struct SwigluCase {
  int n_rows, width;
  size_t stride;
  float sigma;
  bool has_nan;

  OpCase build() const {
    OpCase c{.op = "swiglu",
             .name = fmt::format("rows={} width={} stride={} sigma={}{}", n_rows, width, stride, sigma,
                                 has_nan ? " NaN" : "")};
    c.bound = 4e-7;
    c.bytes = 12.0 * n_rows * width;
    c.flops = 4.0 * n_rows * width;
    c.prepare = [*this](Backend& backend) {
      // gate and up are the two halves of one wide row, as the fused linear of a model leaves them
      Random random(width * 3 + n_rows);
      std::vector<float> host = random.normals(n_rows * stride, 0.2f * sigma, sigma);
      if (has_nan) host[(n_rows / 2) * stride + width / 2] = kNan;
      const auto in = on_device(backend, host);
      const DeviceArray<float> out(backend, static_cast<size_t>(n_rows) * width);
      const SwigluParams p{in.data(), in.data() + (stride - width), out.data(), n_rows, width, stride};
      return OpRun{
          [&backend, in, out, p] { backend.swiglu(p); },
          [out, w = width] { return OpOutput{.row_width = w, .values = out.download(), .bytes = {}}; }};
    };
    return c;
  }
};

struct RopeCase {
  int n_rows, n_heads, head_dim;
  RopePairing pairing;
  int64_t first_pos;
  double base;

  OpCase build() const {
    OpCase c{.op = "rope",
             .name = fmt::format("rows={} heads={} d={} {} from {} base={}", n_rows, n_heads, head_dim,
                                 pairing == RopePairing::Adjacent ? "adjacent" : "halves", first_pos, base)};
    c.bound = 3e-7;
    c.bytes = 8.0 * n_rows * n_heads * head_dim;
    c.flops = 3.0 * n_rows * n_heads * head_dim;
    c.prepare = [*this](Backend& backend) {
      Random random(head_dim * 5 + n_rows);
      const auto x =
          on_device(backend, random.normals(static_cast<size_t>(n_rows) * n_heads * head_dim, 0.4f, 1.0f));
      std::vector<int64_t> positions(n_rows);  // a batch of two sequences: consecutive, then a jump
      for (int r = 0; r < n_rows; r++) positions[r] = r < (n_rows + 1) / 2 ? first_pos - r : r;
      std::vector<float> inv_frequency(head_dim / 2);
      for (int i = 0; i < head_dim / 2; i++)
        inv_frequency[i] = static_cast<float>(std::pow(base, -2.0 * i / head_dim));
      return OpRun{
          [&backend, x, positions, inv_frequency, c = *this] {
            backend.rope({.x = x.data(),
                          .positions = positions.data(),
                          .inv_frequency = inv_frequency.data(),
                          .n_rows = c.n_rows,
                          .n_heads = c.n_heads,
                          .head_dim = c.head_dim,
                          .pairing = c.pairing});
          },
          [x, d = head_dim] { return OpOutput{.row_width = d, .values = x.download(), .bytes = {}}; }};
    };
    return c;
  }
};

}  // namespace

std::vector<OpCase> embed_cases() {
  std::vector<OpCase> all;
  for (const int rows : kRowCounts) all.push_back(EmbedCase{rows, 1009, 65}.build());
  all.push_back(EmbedCase{7, 333, 576}.build());
  all.push_back(EmbedCase{3, 2, 1}.build());
  return all;
}

std::vector<OpCase> rms_norm_cases() {
  std::vector<OpCase> all;
  for (const int rows : kRowCounts)
    all.push_back(RmsNormCase{rows, 576, 1.0f, 1e-5f, rows % 2 == 1, false}.build());
  for (const int width : {1, 2, 5, 31, 64, 65, 127, 128, 577, 1024, 2049})
    all.push_back(RmsNormCase{3, width, 1.0f, 1e-6f, width % 2 == 0, false}.build());
  for (const float sigma : {1e-4f, 30.0f, 1e4f})
    all.push_back(RmsNormCase{5, 129, sigma, 1e-5f, true, false}.build());
  all.push_back(RmsNormCase{3, 65, 1.0f, 1e-5f, false, true}.build());
  return all;
}

std::vector<OpCase> swiglu_cases() {
  std::vector<OpCase> all;
  for (const int rows : kRowCounts) all.push_back(SwigluCase{rows, 193, 2 * 193, 1.5f, false}.build());
  for (const int width : {1, 3, 15, 16, 33, 1536}) {
    all.push_back(SwigluCase{3, width, static_cast<size_t>(2 * width), 2.0f, false}.build());
    all.push_back(SwigluCase{2, width, static_cast<size_t>(2 * width + 5), 2.0f, false}.build());
  }
  for (const float sigma : {1e-3f, 20.0f, 60.0f}) all.push_back(SwigluCase{5, 65, 130, sigma, false}.build());
  all.push_back(SwigluCase{3, 65, 130, 1.0f, true}.build());
  return all;
}

std::vector<OpCase> rope_cases() {
  std::vector<OpCase> all;
  for (const RopePairing pairing : {RopePairing::Adjacent, RopePairing::Halves}) {
    for (const int rows : kRowCounts)
      all.push_back(RopeCase{rows, 3, 64, pairing, rows + 1000, 10000}.build());
    for (const int d : {2, 6, 64, 80, 96, 112, 128, 192, 256})
      all.push_back(RopeCase{5, 2, d, pairing, 131071, 1e6}.build());
    for (const int64_t pos : {int64_t{63}, int64_t{64}, int64_t{8191}, int64_t{131071}, int64_t{1} << 20})
      all.push_back(RopeCase{33, 1, 128, pairing, pos, 10000}.build());
  }
  return all;
}

}  // namespace kv2::cases
