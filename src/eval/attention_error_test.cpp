// SPDX-License-Identifier: Apache-2.0
// measure_attention_error against plain loops in double over every activation of the text, the rows coded
// one by one with the scalar specification of the codec.
#include "eval/attention_error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/float16.h"
#include "calibrate/calibrate.h"
#include "calibrate/sequence_walk.h"
#include "calibrate/tiny_model.h"
#include "calibrate/value_metric.h"
#include "engine/transforms.h"
#include "kv2/error.h"
#include "quant/int2/int2.h"

namespace kv2 {
namespace {

using testing::random_tokens;
using testing::TinyModel;

CacheSpec with_windows(const char* method, int sink, int recent) {
  CacheSpec spec = CacheSpec::parse(method);
  spec.sink_tokens = sink;
  spec.recent_tokens = recent;
  return spec;
}

/// All rows of a text, per layer.
struct Recorder final : Observer {
  struct Layer {
    std::vector<float> q, k, v, out;
  };
  std::vector<Layer> layers = std::vector<Layer>(2);
  int q_width, kv_width;

  explicit Recorder(const KvShape& s)
      : q_width(s.n_heads * s.head_dim), kv_width(s.n_kv_heads * s.head_dim) {}
  void on_layer(const LayerActivations& a) override {
    Layer& l = layers.at(a.layer);
    l.q.insert(l.q.end(), a.q, a.q + a.n_rows * q_width);
    l.k.insert(l.k.end(), a.k, a.k + a.n_rows * kv_width);
    l.v.insert(l.v.end(), a.v, a.v + a.n_rows * kv_width);
    l.out.insert(l.out.end(), a.attention_out, a.attention_out + a.n_rows * q_width);
  }
};

using Vector = std::vector<double>;

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); i++) sum += a[i] * b[i];
  return sum;
}

Vector times(const Vector& x, const float* matrix, bool transposed) {
  const size_t d = x.size();
  Vector out(d, 0.0);
  for (size_t i = 0; i < d; i++)
    for (size_t j = 0; j < d; j++) out[j] += x[i] * (transposed ? matrix[j * d + i] : matrix[i * d + j]);
  return out;
}

double under(const std::vector<Vector>& metric, const Vector& x) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); i++)
    for (size_t j = 0; j < x.size(); j++) sum += x[i] * metric[i][j] * x[j];
  return sum;
}

/// What a reader of the cache sees of one row, back in the model's basis.
Vector seen(const float* x, const Transform& t, int head, int d, const Coder* coder) {
  Vector y(x, x + d);
  const auto mean = [&](int i) { return t.mean.empty() ? 0.0 : t.mean[static_cast<size_t>(head) * d + i]; };
  const size_t matrix = static_cast<size_t>(head) * d * d;
  for (int i = 0; i < d; i++) y[i] -= mean(i);
  if (!t.encode.empty()) y = times(y, t.encode.data() + matrix, false);
  std::vector<bf16> row(d);
  for (int i = 0; i < d; i++) row[i] = to_bf16(static_cast<float>(y[i]));
  std::vector<float> decoded(d);
  for (int i = 0; i < d; i++) decoded[i] = to_float(row[i]);
  if (coder) {
    std::vector<uint8_t> codes(d);
    std::vector<fp16> scale(d), offset(d);
    int2::encode_vector(row.data(), d, *coder, codes.data(), scale.data(), offset.data());
    int2::decode_vector(codes.data(), scale.data(), offset.data(), d, coder->group, decoded.data());
  }
  Vector out(decoded.begin(), decoded.end());
  if (!t.decode.empty()) out = times(out, t.decode.data() + matrix, false);
  for (int i = 0; i < d; i++) out[i] += mean(i);
  return out;
}

/// Everything of AttentionError for one KV head, by definition.
AttentionError naive(const Recorder::Layer& a, const KvShape& shape, int head, const LayerTransforms& t,
                     const CacheSpec& spec, const Coder& coder_k, const Coder& coder_v, int64_t first,
                     int stride, const std::vector<Vector>& value_metric) {
  const int d = shape.head_dim, per_kv = shape.q_per_kv(), kv = shape.n_kv_heads;
  const int n = static_cast<int>(a.k.size()) / (kv * d);
  const Visibility rule{spec.sink_pages(), spec.recent_pages(), true};
  const Transform none;
  std::vector<Vector> k, v, k_full, v_full, k_packed, v_packed, q;
  for (int j = 0; j < n; j++) {
    const float *key = a.k.data() + (j * kv + head) * d, *value = a.v.data() + (j * kv + head) * d;
    k.push_back(seen(key, none, 0, d, nullptr));
    v.push_back(seen(value, none, 0, d, nullptr));
    k_full.push_back(seen(key, t.k, head, d, nullptr));
    v_full.push_back(seen(value, t.v, head, d, nullptr));
    k_packed.push_back(seen(key, t.k, head, d, &coder_k));
    v_packed.push_back(seen(value, t.v, head, d, &coder_v));
    for (int g = 0; g < per_kv; g++) {
      const float* x = a.q.data() + (j * shape.n_heads + head * per_kv + g) * d;
      q.emplace_back(x, x + d);
    }
  }
  AttentionError out;
  for (int64_t i = first; i < n; i++) {
    if (i % stride != stride - 1) continue;
    for (int g = 0; g < per_kv; g++) {
      const Vector& query = q[i * per_kv + g];
      Vector s, e, weight, stored_weight;
      double z = 0, stored_z = 0, mean = 0;
      int n_packed = 0;
      const auto packed = [&](int64_t j) {
        return rule.packed(static_cast<int>(i / kPageTokens), static_cast<int>(j / kPageTokens));
      };
      for (int64_t j = 0; j <= i; j++) {
        s.push_back(dot(query, k[j]) / std::sqrt(d));
        e.push_back(dot(query, packed(j) ? k_packed[j] : k_full[j]) / std::sqrt(d) - s[j]);
        z += std::exp(s[j]);
        stored_z += std::exp(s[j] + e[j]);
        if (packed(j)) mean += s[j], n_packed++;
      }
      Vector o(d, 0.0), o_both(d, 0.0), o_k(d, 0.0), o_v(d, 0.0);
      for (int64_t j = 0; j <= i; j++) {
        const double w = std::exp(s[j]) / z, stored_w = std::exp(s[j] + e[j]) / stored_z;
        out.kl += w * std::log(w / stored_w);
        if (packed(j)) {
          out.pairs++;
          out.logit_error2 += e[j] * e[j];
          out.logit_spread2 += (s[j] - mean / n_packed) * (s[j] - mean / n_packed);
          out.weighted_error2 += w * e[j] * e[j];
          out.history_mass += w;
          out.stored_mass += stored_w;
        }
        const Vector& stored = packed(j) ? v_packed[j] : v_full[j];
        for (int c = 0; c < d; c++) {
          o[c] += w * v[j][c];
          o_both[c] += stored_w * stored[c];
          o_k[c] += stored_w * v[j][c];
          o_v[c] += w * stored[c];
        }
      }
      out.queries++;
      for (int c = 0; c < d; c++) {
        out.output2 += o[c] * o[c];
        out.output_error2 += (o_both[c] - o[c]) * (o_both[c] - o[c]);
        out.output_error_k2 += (o_k[c] - o[c]) * (o_k[c] - o[c]);
        out.output_error_v2 += (o_v[c] - o[c]) * (o_v[c] - o[c]);
      }
    }
  }
  std::vector<Vector> c_q(d, Vector(d, 0.0));
  for (const Vector& x : q)
    for (int i = 0; i < d; i++)
      for (int j = 0; j < d; j++) c_q[i][j] += x[i] * x[j] / static_cast<double>(q.size()) / d;
  const int begin = spec.sink_tokens, end = (n / kPageTokens - rule.recent_pages) * kPageTokens;
  Vector k_mean(d, 0.0), v_mean(d, 0.0);
  for (int j = begin; j < end; j++)
    for (int c = 0; c < d; c++) k_mean[c] += k[j][c] / (end - begin), v_mean[c] += v[j][c] / (end - begin);
  for (int j = begin; j < end; j++) {
    Vector ke(d), kc(d), ve(d), vc(d);
    for (int c = 0; c < d; c++) {
      ke[c] = k_packed[j][c] - k[j][c], kc[c] = k[j][c] - k_mean[c];
      ve[c] = v_packed[j][c] - v[j][c], vc[c] = v[j][c] - v_mean[c];
    }
    out.key_error += under(c_q, ke);
    out.key_energy += under(c_q, kc);
    out.value_error += under(value_metric, ve);
    out.value_energy += under(value_metric, vc);
  }
  return out;
}

void expect_equal(const AttentionError& got, const AttentionError& want, double relative) {
  EXPECT_EQ(got.queries, want.queries);
  EXPECT_EQ(got.pairs, want.pairs);
  const auto near = [&](const char* name, double g, double w) {
    EXPECT_GT(w, 0) << name;
    EXPECT_NEAR(g, w, relative * w) << name;
  };
  near("logit_error2", got.logit_error2, want.logit_error2);
  near("logit_spread2", got.logit_spread2, want.logit_spread2);
  near("weighted_error2", got.weighted_error2, want.weighted_error2);
  near("kl", got.kl, want.kl);
  near("history_mass", got.history_mass, want.history_mass);
  near("stored_mass", got.stored_mass, want.stored_mass);
  near("output2", got.output2, want.output2);
  near("output_error2", got.output_error2, want.output_error2);
  near("output_error_k2", got.output_error_k2, want.output_error_k2);
  near("output_error_v2", got.output_error_v2, want.output_error_v2);
  near("key_error", got.key_error, want.key_error);
  near("key_energy", got.key_energy, want.key_energy);
  near("value_error", got.value_error, want.value_error);
  near("value_energy", got.value_energy, want.value_energy);
}

class AttentionErrorTest : public ::testing::Test {
 protected:
  TinyModel model_{128};
  std::vector<int32_t> tokens_ = random_tokens(400, 3);

  void expect_as_naive(const char* method, const Calibration* calibration, double relative) {
    SCOPED_TRACE(method);
    const CacheSpec spec = with_windows(method, 64, 64);
    const KvShape shape = model_->config().kv_shape();
    const auto results = measure_attention_error(*model_, tokens_, {spec}, calibration,
                                                 {.chunk_tokens = 100, .query_stride = 4, .n_threads = 2});
    ASSERT_EQ(results.size(), 1u);
    Recorder recorder(shape);
    SequenceWalk walk(*model_, CacheSpec::parse("bf16"), nullptr, 400, 100);
    walk.restart(0);
    for (size_t i = 0; i < 400; i += 100) walk.advance(std::span(tokens_).subspan(i, 100), {}, &recorder);
    const FittedMethod fitted = fit_method(spec, shape, calibration);
    const Transform identity = identity_transform(shape.n_kv_heads, shape.head_dim);
    ThreadTeam team(1);
    for (int layer = 0; layer < shape.n_layers; layer++) {
      const LayerTransforms t =
          fitted.transforms.empty() ? LayerTransforms{identity, identity} : fitted.transforms[layer];
      const auto coder = [&](float clip) {
        return Coder{CoderKind::Round, default_group(shape.head_dim), clip_index(clip, shape.head_dim)};
      };
      const std::vector<float> metrics = value_metric(*model_, layer, team);
      for (int h = 0; h < shape.n_kv_heads; h++) {
        SCOPED_TRACE(layer * 10 + h);
        std::vector<Vector> metric;
        for (int i = 0; i < shape.head_dim; i++) {
          const float* row = metrics.data() + (h * shape.head_dim + i) * shape.head_dim;
          metric.emplace_back(row, row + shape.head_dim);
        }
        expect_equal(results[0].head(layer, h),
                     naive(recorder.layers[layer], shape, h, t, spec, coder(fitted.clips[layer].first),
                           coder(fitted.clips[layer].second), 3 * kPageTokens, 4, metric),
                     relative);
      }
    }
  }
};

TEST_F(AttentionErrorTest, EqualsPlainLoopsInDouble) {
  expect_as_naive("naive2", nullptr, 1e-4);
  expect_as_naive("quarot2:clip-k=0.9,clip-v=0.8", nullptr, 2e-3);  // a row's last bit may flip a code
}

TEST_F(AttentionErrorTest, TransformsWithMeansToo) {
  const Calibration c =
      calibrate(*model_, random_tokens(768, 5), {.n_tokens = 512, .n_held_out = 256, .window = 256});
  expect_as_naive("oscar2:centre=k", &c, 2e-3);
}

TEST_F(AttentionErrorTest, Bf16HasNone) {
  const auto results = measure_attention_error(
      *model_, tokens_, {CacheSpec::parse("bf16"), with_windows("naive2", 64, 64)}, nullptr, {});
  const AttentionError none = results[0].all(), some = results[1].all();
  EXPECT_EQ(none.queries, some.queries);
  EXPECT_GT(none.queries, 0);
  EXPECT_LT(none.output(), 1e-5);  // the order of float sums
  EXPECT_LT(none.attention_kl(), 1e-8);
  EXPECT_EQ(none.pairs, 0);
  EXPECT_EQ(none.key(), 0);
  EXPECT_EQ(none.logit(), 0);
  EXPECT_GT(some.output(), 0.01);
  EXPECT_GT(none.output2, 0);
}

TEST_F(AttentionErrorTest, ChunksAndThreadsDoNotMatter) {
  const std::vector<CacheSpec> specs{with_windows("quarot2", 0, 64), with_windows("naive2", 64, 128)};
  const auto whole =
      measure_attention_error(*model_, tokens_, specs, nullptr, {.chunk_tokens = 128, .n_threads = 1});
  const auto cut =
      measure_attention_error(*model_, tokens_, specs, nullptr, {.chunk_tokens = 37, .n_threads = 3});
  for (size_t m = 0; m < specs.size(); m++)
    for (size_t i = 0; i < whole[m].heads.size(); i++) {
      SCOPED_TRACE(i);
      expect_equal(cut[m].heads[i], whole[m].heads[i], 1e-4);
    }
}

TEST_F(AttentionErrorTest, LayersPoolTheirHeads) {
  const auto r = measure_attention_error(*model_, tokens_, {with_windows("naive2", 64, 64)}, nullptr, {})[0];
  const AttentionError layer = r.layer(1);
  EXPECT_EQ(layer.queries, r.head(1, 0).queries + r.head(1, 1).queries);
  EXPECT_DOUBLE_EQ(layer.output(), std::sqrt((r.head(1, 0).output_error2 + r.head(1, 1).output_error2) /
                                             (r.head(1, 0).output2 + r.head(1, 1).output2)));
  std::istringstream lines(to_json_lines(r));
  int n = 0;
  for (std::string line; std::getline(lines, line); n++) {
    const auto j = nlohmann::json::parse(line);
    EXPECT_EQ(j["judge"], "attend");
    EXPECT_EQ(j["layer"], n / 2);
    EXPECT_EQ(j["kv_head"], n % 2);
    EXPECT_DOUBLE_EQ(j["output"].get<double>(), r.heads[n].output());
  }
  EXPECT_EQ(n, 4);
  EXPECT_NE(to_table(r, AttentionRows::Heads).find("\n1.1 "), std::string::npos);
}

TEST_F(AttentionErrorTest, SaysWhatIsWrong) {
  const auto message = [&](const std::vector<int32_t>& tokens, const CacheSpec& spec,
                           const AttentionErrorOptions& options) -> std::string {
    try {
      measure_attention_error(*model_, tokens, {spec}, nullptr, options);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::BadArgument);
      return e.what();
    }
    return "no error";
  };
  const CacheSpec spec = with_windows("naive2", 64, 64);
  EXPECT_NE(message({}, spec, {}).find("256 or more tokens are needed, the text has 0"), std::string::npos);
  EXPECT_NE(message(random_tokens(255, 1), spec, {}).find("has 255"), std::string::npos);
  EXPECT_NE(message(random_tokens(2000, 1), spec, {}).find("context is 768"), std::string::npos);
  EXPECT_NE(message(tokens_, spec, {.query_stride = 0}).find("every 0th"), std::string::npos);
  EXPECT_NE(message(tokens_, with_windows("oscar2", 64, 64), {}).find("calibration"), std::string::npos);
  CacheSpec exact = spec;
  exact.prefill = PrefillPolicy::Exact;
  EXPECT_NE(message(tokens_, exact, {}).find("windowed"), std::string::npos);
  std::vector<int32_t> foreign = tokens_;
  foreign[5] = 1000;
  EXPECT_NE(message(foreign, spec, {}).find("1000"), std::string::npos);
}

}  // namespace
}  // namespace kv2
