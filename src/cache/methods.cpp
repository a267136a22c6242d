// SPDX-License-Identifier: Apache-2.0
// The methods table and the text form of a CacheSpec: "name" or "name:key=value,key=value". A new method is
// one row of rows(); a new parameter one row of method_parameters.cpp. What method_text() prints, parse()
// reads back to the same Method. It does not know models: whether a group fits is asked with a head_dim, in
// validate().
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "base/check.h"
#include "cache/method_parameters.h"
#include "kv2/cache.h"
#include "quant/coder.h"
#include "quant/page_layout.h"
#include "quant/rotation.h"

namespace kv2 {
namespace {

constexpr int kMaxWindowTokens = 1 << 24;  // far past any model; keeps pages·tokens in int

struct Row {
  Method method;  // with the method's defaults
  const char* description;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {{.name = "bf16"}, "every row in bf16, the model's own basis; the reference"},
      {{.name = "naive2", .codec = CodecId::Int2}, "2-bit codes in the model's own basis, min/max, no clip"},
      {{.name = "quarot2", .codec = CodecId::Int2, .transform = TransformKind::Hadamard},
       "2-bit codes after a Hadamard rotation (QuaRot), no clip; needs no calibration"},
      {{.name = "oscar2",
        .codec = CodecId::Int2,
        .transform = TransformKind::Calibrated,
        .clip_k = std::nullopt,
        .clip_v = std::nullopt},
       "2-bit codes after a calibrated rotation per KV head, clips searched per layer (OSCAR, arXiv "
       "2605.17757)"},
      {{.name = "kv2",
        .codec = CodecId::Int2,
        .coder = CoderKind::Feedback,
        .transform = TransformKind::Calibrated,
        .clip_k = std::nullopt,
        .clip_v = std::nullopt,
        .steps = {0.95f, 1.1f, 1.25f}},
       "2-bit codes chosen with error feedback under the metric of queries and W_o, after oscar2's rotation; "
       "needs a calibration"},
  };
  return table;
}

std::string method_list() {
  std::string list;
  for (const Row& row : rows()) {
    list += fmt::format("{}{} ({})", list.empty() ? "" : "; ", row.method.name, row.description);
  }
  return list;
}

const Row& row_of(std::string_view name) {
  for (const Row& row : rows()) {
    if (row.method.name == name) return row;
  }
  throw_error(ErrorCode::BadArgument, "unknown method '{}'; methods: {}", name, method_list());
}

const char* prefill_word(PrefillPolicy policy) {
  return policy == PrefillPolicy::Exact ? "exact" : "windowed";
}

void validate_window(const char* name, int tokens) {
  if (tokens < 0 || tokens > kMaxWindowTokens || tokens % kPageTokens != 0) {
    throw_error(ErrorCode::BadArgument, "{} is {} tokens; it must be a multiple of {} from 0 to {}", name,
                tokens, kPageTokens, kMaxWindowTokens);
  }
}

void validate_clip(const char* name, const std::optional<float>& clip) {
  if (clip && !(*clip > 0 && *clip <= 1)) {
    throw_error(ErrorCode::BadArgument, "{} is {}; it must be in (0, 1]", name, *clip);
  }
}

}  // namespace

const std::vector<MethodInfo>& methods() {
  static const std::vector<MethodInfo> list = [] {
    std::vector<MethodInfo> infos;
    for (const Row& row : rows()) infos.push_back({row.method.name, row.description});
    return infos;
  }();
  return list;
}

CacheSpec CacheSpec::parse(std::string_view method_text) {
  const size_t colon = method_text.find(':');
  CacheSpec spec{.method = row_of(method_text.substr(0, colon)).method};
  if (colon == method_text.npos) return spec;
  std::vector<const Parameter*> seen;
  for (std::string_view rest = method_text.substr(colon + 1);;) {
    const size_t comma = rest.find(',');
    const Parameter& parameter = read_parameter(rest.substr(0, comma), spec.method);
    if (std::find(seen.begin(), seen.end(), &parameter) != seen.end()) {
      throw_error(ErrorCode::BadArgument, "method {}: parameter {} is given twice", spec.method.name,
                  parameter.name);
    }
    seen.push_back(&parameter);
    if (comma == rest.npos) break;
    rest.remove_prefix(comma + 1);
  }
  validate_coder(spec.method);
  return spec;
}

std::string CacheSpec::method_text() const {
  const Method& row = row_of(method.name).method;
  KV2_CHECK(method.codec == row.codec && method.coder == row.coder && method.transform == row.transform,
            "method {} differs from its row in codec, coder or transform", method.name);
  std::string text = method.name;
  for (const Parameter& p : method_parameters()) {
    if (!p.text || !takes(method, p)) continue;
    if (const std::string value = p.text(method); value != p.text(row)) {
      text += fmt::format("{}{}={}", text.size() == method.name.size() ? ':' : ',', p.name, value);
    }
  }
  return text;
}

std::string CacheSpec::describe() const {
  if (!method.quantized()) return fmt::format("{}: every token in bf16", method_text());
  return fmt::format("{}: first {} and last {} tokens in bf16, 2-bit history between, {} prefill",
                     method_text(), sink_tokens, recent_tokens, prefill_word(prefill));
}

void CacheSpec::validate(int head_dim) const {
  method_text();  // refuses a method that is not in the table
  validate_window("sink", sink_tokens);
  validate_window("recent", recent_tokens);
  if (head_dim <= 0) throw_error(ErrorCode::BadArgument, "head_dim is {}; it must be positive", head_dim);
  if (!method.quantized()) return;
  validate_clip("clip-k", method.clip_k);
  validate_clip("clip-v", method.clip_v);
  validate_coder(method);
  if (head_dim % 4 != 0 || head_dim > kMaxHeadDim) {
    throw_error(
        ErrorCode::BadArgument,
        "method {} packs heads of a multiple of 4 up to {} channels, this model has head_dim {}; use bf16",
        method.name, kMaxHeadDim, head_dim);
  }
  const int group = group_for(head_dim);
  if (group < 4 || group % 4 != 0 || head_dim % group != 0) {
    std::string fitting;
    for (int g = 4; g <= head_dim; g += 4) {
      if (head_dim % g == 0) fitting += fmt::format("{}{}", fitting.empty() ? "" : ", ", g);
    }
    throw_error(ErrorCode::BadArgument,
                "method {}: group {} does not divide this model's head_dim {}; groups that do: {}",
                method.name, group, head_dim, fitting);
  }
  const bool hadamard = method.transform == TransformKind::Hadamard ||
                        (method.transform == TransformKind::Calibrated && method.recipe != RotationRecipe::U);
  if (hadamard && !has_hadamard(head_dim)) {
    throw_error(ErrorCode::BadArgument,
                "method {}: no Hadamard matrix of order {} (this model's head_dim); orders: {}; use {}",
                method.name, head_dim, hadamard_orders(),
                method.transform == TransformKind::Calibrated ? method.name + ":rotation=u"
                                                              : "naive2 or oscar2:rotation=u");
  }
}

int CacheSpec::group_for(int head_dim) const {
  return method.group > 0 ? method.group : default_group(head_dim);
}

uint64_t CacheSpec::hash() const {
  // The text is the format: a change of the coder, the page or the rule of visibility must change the number
  // in it.
  const std::string text = fmt::format("kv2 cache 1: {} sink={} recent={} prefill={} page={}", method_text(),
                                       sink_tokens, recent_tokens, prefill_word(prefill), kPageTokens);
  return XXH64(text.data(), text.size(), 0);
}

}  // namespace kv2
