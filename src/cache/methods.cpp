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
#include "quant/page_codec.h"
#include "quant/rotation.h"

namespace kv2 {
namespace {

constexpr int kMaxWindowTokens = 1 << 24;  // far past any model; keeps pages·tokens in int

struct Row {
  Method method;  // with the method's defaults
  const char* description;
};

constexpr SideFormat affine(int bits, int group = 0) {
  return {.codec = CodecId::Affine, .bits = bits, .group = group};
}
constexpr SideFormat channel(int group) {
  return {.codec = CodecId::Channel, .bits = 2, .group = group};
}
constexpr SideFormat gauss(int bits) {
  return {.codec = CodecId::Gauss, .bits = bits};
}

/// A row whose fields beside the codecs are set by `edit`.
template <class Edit>
Row row(const char* name, SideFormat k, SideFormat v, const char* description, const Edit& edit) {
  Row out{{.name = name, .k = k, .v = v}, description};
  edit(out.method);
  return out;
}

void plain(Method&) {}
void hadamard(Method& m) {
  m.transform = TransformKind::Hadamard;
}
void signed_hadamard(Method& m) {
  m.transform = TransformKind::SignedHadamard;
}
void calibrated(Method& m) {
  m.transform = TransformKind::Calibrated;
  m.clip_k = m.clip_v = std::nullopt;
}

std::vector<Row> make_rows() {
  return {
      {{.name = "bf16"}, "every row in bf16, the model's own basis; the reference"},
      row("naive2", affine(2), affine(2), "2-bit codes in the model's own basis, min/max, no clip", plain),
      row("quarot2", affine(2), affine(2),
          "2-bit codes after a Hadamard rotation (QuaRot), no clip; needs no calibration", hadamard),
      row("oscar2", affine(2), affine(2),
          "2-bit codes after a calibrated rotation per KV head, clips searched per layer (OSCAR, arXiv "
          "2605.17757)",
          calibrated),
      row("kv2", affine(2), affine(2),
          "2-bit codes chosen with error feedback under the metric of queries and W_o; keys centred, both "
          "whitened; "
          "needs a calibration",
          [](Method& m) {
            calibrated(m);
            m.coder = CoderKind::Feedback;
            m.centring = Centring::Keys;
            m.whiten_k = m.whiten_v = 1;
          }),
      row("oscar2-lloyd", affine(2), affine(2),
          "oscar2 with its published clips and the cells of a Gaussian's best 4 levels (its Lloyd-Max "
          "option)",
          [](Method& m) {
            calibrated(m);
            m.clip_k = 0.96f, m.clip_v = 0.92f;
            m.range = RangeRule::LloydMax;
          }),
      row("kivi2", channel(32), affine(2, 32),
          "2-bit keys per channel over 32 tokens, values per token in groups of 32 (KIVI, arXiv 2402.02750)",
          plain),
      row("omni2", channel(32), affine(2, 32),
          "kivi2 after a Hadamard rotation, keys divided by one norm per token (OScaR, arXiv 2605.19660)",
          [](Method& m) {
            hadamard(m);
            m.k.norm = TokenNorm::AllHeads;
          }),
      row("ott2", channel(32), affine(2, 32),
          "kivi2 with the key of smallest magnitude of every page kept in bf16 (OTT, arXiv 2505.10938)",
          [](Method& m) { m.k.kept = 1; }),
      row("kitty2", channel(64), affine(2),
          "2-bit keys per channel over a page, 8 of 64 channels with 4 bits; values per token (Kitty)",
          [](Method& m) { m.k.wide = 8; }),
      row("rotatekv2", {.codec = CodecId::HeadGroups, .bits = 2}, affine(2),
          "2-bit keys after a Hadamard rotation of up to four heads together, range narrowed to 0.8 "
          "(RotateKV, arXiv "
          "2501.16383; here after RoPE)",
          [](Method& m) {
            hadamard(m);
            m.transform_sides = TransformSides::Values;
            m.range = RangeRule::IntegerZero;
          }),
      row("gtq2", {.codec = CodecId::RopeBlocks, .bits = 2}, gauss(2),
          "tq2 with 1 to 4 bits per channel of keys by its energy in calibration, 2 in the mean (as "
          "Block-GTQ)",
          [](Method& m) {
            signed_hadamard(m);
            m.transform_sides = TransformSides::Values;
          }),
      row("tq2", gauss(2), gauss(2),
          "2-bit levels of a Gaussian and a norm, after a random rotation (TurboQuant, arXiv 2504.19874)",
          signed_hadamard),
      row("tq3", gauss(3), gauss(3), "the same with 3 bits", signed_hadamard),
      row("tq4", gauss(4), gauss(4), "the same with 4 bits", signed_hadamard),
      row("int4", affine(4), affine(4), "4-bit codes, keys after a Hadamard rotation (Saw-INT4)",
          [](Method& m) {
            hadamard(m);
            m.transform_sides = TransformSides::Keys;
          }),
      row("int8", affine(8), affine(8), "8-bit codes in the model's own basis", plain),
  };
}

const std::vector<Row>& rows() {
  static const std::vector<Row> table = make_rows();
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

/// A parameter chooses between the two forms of TurboQuant.
CodecId family(CodecId codec) {
  return codec == CodecId::Qjl ? CodecId::Gauss : codec;
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

void validate_hadamard(const Method& method, int head_dim) {
  const bool whole =
      method.transform == TransformKind::Hadamard || method.transform == TransformKind::SignedHadamard;
  const int block = whole && method.hadamard_block > 0 ? method.hadamard_block : head_dim;
  if (head_dim % block != 0)
    throw_error(ErrorCode::BadArgument,
                "method {}: Hadamard blocks of {} do not divide this model's head_dim {}", method.name, block,
                head_dim);
  const bool needed =
      whole || (method.transform == TransformKind::Calibrated && method.recipe != RotationRecipe::U);
  if (!needed || has_hadamard(block)) return;
  const std::string instead = method.transform == TransformKind::Calibrated ? method.name + ":rotation=u"
                              : method.transform == TransformKind::Hadamard ? method.name + ":hadamard=16"
                                                                            : "quarot2:hadamard=16";
  throw_error(ErrorCode::BadArgument,
              "method {}: no Hadamard matrix of order {} (this model's head_dim); orders: {}; use {}",
              method.name, block, hadamard_orders(), instead);
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
  KV2_CHECK(
      family(method.k.codec) == family(row.k.codec) && family(method.v.codec) == family(row.v.codec) &&
          method.coder == row.coder &&
          (method.transform == TransformKind::Calibrated) == (row.transform == TransformKind::Calibrated),
      "method {} differs from its row in codec, coder or transform", method.name);
  std::string text = method.name;
  for (const Parameter& p : method_parameters()) {
    if (!p.text || !takes(method, p)) continue;
    if (const std::string value = p.text(method); !value.empty() && value != p.text(row)) {
      text += fmt::format("{}{}={}", text.size() == method.name.size() ? ':' : ',', p.name, value);
    }
  }
  return text;
}

std::string CacheSpec::describe() const {
  if (!method.quantized()) return fmt::format("{}: every token in bf16", method_text());
  const int k = method.k.bits, v = method.v.bits;
  const std::string bits =
      k == v ? fmt::format("{}-bit", k) : fmt::format("{}-bit keys and {}-bit values as", k, v);
  return fmt::format("{}: first {} and last {} tokens in bf16, {} history between, {} prefill", method_text(),
                     sink_tokens, recent_tokens, bits, prefill_word(prefill));
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
  try {
    for (const SideFormat& side : {method.k, method.v}) page_codec(side.codec).resolve(side, head_dim);
  } catch (const Error& e) {
    throw e.in(fmt::format("method {}", method.name));
  }
  validate_hadamard(method, head_dim);
}

uint64_t CacheSpec::hash() const {
  // The text is the format: a change of the coder, the page or the rule of visibility must change the number
  // in it. Every parameter is in it, so that another default is another number, too.
  std::string text = fmt::format("kv2 cache 2: {} sink={} recent={} prefill={} page={}", method.name,
                                 sink_tokens, recent_tokens, prefill_word(prefill), kPageTokens);
  for (const Parameter& p : method_parameters())
    if (p.text && takes(method, p)) text += fmt::format(" {}={}", p.name, p.text(method));
  return XXH64(text.data(), text.size(), 0);
}

}  // namespace kv2
