// SPDX-License-Identifier: Apache-2.0
#include "cache/method_parameters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/check.h"
#include "quant/coder.h"

namespace kv2 {
namespace {

template <class T>
struct Word {
  const char* text;
  T value;
};
constexpr Word<RotationRecipe> kRecipes[] = {
    {"u", RotationRecipe::U}, {"uh", RotationRecipe::UH}, {"uhp", RotationRecipe::UHP}};
constexpr Word<RotationSharing> kSharings[] = {{"head", RotationSharing::Head},
                                               {"layer", RotationSharing::Layer}};
constexpr Word<Centring> kCentrings[] = {{"off", Centring::Off}, {"k", Centring::Keys}};
constexpr Word<OffsetKind> kOffsets[] = {
    {"on", OffsetKind::Stored}, {"off", OffsetKind::Centred}, {"symmetric", OffsetKind::Symmetric}};
constexpr Word<TokenNorm> kNorms[] = {{"off", TokenNorm::Off}, {"on", TokenNorm::AllHeads}};
constexpr Word<NormRule> kNormRules[] = {{"corrected", NormRule::Corrected}, {"plain", NormRule::Plain}};
constexpr Word<TransformSides> kTransformSides[] = {
    {"both", TransformSides::Both}, {"k", TransformSides::Keys}, {"v", TransformSides::Values}};
constexpr Word<RangeRule> kRanges[] = {
    {"minmax", RangeRule::MinMax}, {"integer", RangeRule::IntegerZero}, {"lloyd", RangeRule::LloydMax}};
constexpr Word<FeedbackSides> kSides[] = {
    {"both", FeedbackSides::Both}, {"k", FeedbackSides::Keys}, {"v", FeedbackSides::Values}};
constexpr Word<ValueTarget> kTargets[] = {{"paper", ValueTarget::AttentionOutput},
                                          {"energy", ValueTarget::EnergyWeighted},
                                          {"cov", ValueTarget::SelfCovariance}};

template <class T, size_t n>
bool read_word(const Word<T> (&words)[n], std::string_view text, T& out) {
  for (const auto& word : words) {
    if (text == word.text) return out = word.value, true;
  }
  return false;
}

template <class T, size_t n>
std::string word_of(const Word<T> (&words)[n], T value) {
  for (const auto& word : words) {
    if (word.value == value) return word.text;
  }
  KV2_CHECK(false, "enumerator {} has no word", static_cast<int>(value));
  return {};
}

bool read_clip(std::string_view text, std::optional<float>& out) {
  if (text == "search") return out = std::nullopt, true;
  if (text == "off") return out = 1.0f, true;
  float ratio = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ratio);
  if (error != std::errc() || end != text.data() + text.size() || !(ratio > 0 && ratio <= 1)) return false;
  return out = ratio, true;
}

std::string clip_text(const std::optional<float>& clip) {
  if (!clip) return "search";
  return *clip == 1.0f ? "off"
                       : fmt::format("{}", *clip);  // the shortest text that reads back to the same float
}

template <class T>
bool read_number(std::string_view text, T low, T high, T& out) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= low && value <= high))
    return false;
  return out = value, true;
}

bool read_group(std::string_view text, int& out) {
  if (text == "auto") return out = 0, true;
  int group = 0;
  return read_number(text, 4, kMaxHeadDim, group) && group % 4 == 0 && (out = group, true);
}

bool read_bits(std::string_view text, int& out) {
  int bits = 0;
  return read_number(text, 1, 8, bits) && (bits <= 4 || bits == 8) && (out = bits, true);
}

bool read_qjl(std::string_view text, Method& m) {
  const auto set = [](SideFormat& side, bool on) { side.codec = on ? CodecId::Qjl : CodecId::Gauss; };
  if (text != "off" && text != "k" && text != "v" && text != "both") return false;
  set(m.k, text == "k" || text == "both");
  set(m.v, text == "v" || text == "both");
  return true;
}

std::string qjl_text(const Method& m) {
  const bool k = m.k.codec == CodecId::Qjl, v = m.v.codec == CodecId::Qjl;
  return k && v ? "both" : k ? "k" : v ? "v" : "off";
}

bool read_hadamard(std::string_view text, Method& m) {
  const bool has_signs = m.transform == TransformKind::SignedHadamard;
  if (text == "off") return m.hadamard_block = 0, m.transform = TransformKind::Identity, true;
  int block = 0;
  if (text != "on" && (has_signs || !read_number(text, 2, kMaxHeadDim, block))) return false;
  m.hadamard_block = block;
  if (!has_signs) m.transform = TransformKind::Hadamard;
  return true;
}

std::string hadamard_text(const Method& m) {
  if (m.transform == TransformKind::Identity) return "off";
  return m.hadamard_block == 0 ? "on" : fmt::format("{}", m.hadamard_block);
}

bool read_layer_list(std::string_view text, std::vector<int>& out) {
  for (;;) {
    const size_t slash = text.find('/');
    if (int layer = 0; !read_number(text.substr(0, slash), -100000, 100000, layer))
      return false;
    else
      out.push_back(layer);
    if (slash == text.npos) return true;
    text.remove_prefix(slash + 1);
  }
}

bool read_form(std::string_view text, LayerOverride& out) {
  if (text == "bf16") return out.form = LayerOverride::Form::Bf16, true;
  if (text.starts_with("int")) {
    out.form = LayerOverride::Form::Rounded;
    return read_bits(text.substr(3), out.bits_k) && (out.bits_v = out.bits_k, true);
  }
  const size_t v = text.find('v');
  if (!text.starts_with("k") || v == text.npos) return false;
  out.form = LayerOverride::Form::Bits;
  return read_bits(text.substr(1, v - 1), out.bits_k) && read_bits(text.substr(v + 1), out.bits_v);
}

/// "0/1/-1=int8+5=bf16"
bool read_overrides(std::string_view text, std::vector<LayerOverride>& out) {
  out.clear();
  if (text == "none") return true;
  for (;;) {
    const size_t plus = text.find('+'), equals = text.find('=');
    LayerOverride o;
    if (equals == text.npos || !read_layer_list(text.substr(0, equals), o.layers)) return false;
    if (!read_form(text.substr(equals + 1, plus == text.npos ? plus : plus - equals - 1), o)) return false;
    out.push_back(std::move(o));
    if (plus == text.npos) return true;
    text.remove_prefix(plus + 1);
  }
}

std::string overrides_text(const std::vector<LayerOverride>& overrides) {
  std::string text;
  for (const LayerOverride& o : overrides) {
    text += fmt::format("{}{}=", text.empty() ? "" : "+", fmt::join(o.layers, "/"));
    if (o.form == LayerOverride::Form::Bf16) text += "bf16";
    if (o.form == LayerOverride::Form::Rounded) text += fmt::format("int{}", o.bits_k);
    if (o.form == LayerOverride::Form::Bits) text += fmt::format("k{}v{}", o.bits_k, o.bits_v);
  }
  return text.empty() ? "none" : text;
}

std::string group_text(int group) {
  return group == 0 ? "auto" : fmt::format("{}", group);
}

/// A number of both sides prints under the name for both, or under the names of each side where they differ.
std::string of_both(int k, int v) {
  return k == v ? fmt::format("{}", k) : "";
}
std::string of_one(int k, int v, int own) {
  return k == v ? "" : fmt::format("{}", own);
}

bool sound_step(float step) {
  return step >= 0.01f && step <= 100.0f;
}
bool sound_damp(float damp) {
  return damp >= 1e-6f && damp <= 100.0f;
}
constexpr int kMaxRefits = 8;

bool read_steps(std::string_view text, std::vector<float>& out) {
  out.clear();
  if (text == "auto") return true;
  for (;;) {
    const size_t slash = text.find('/');
    float step = 0;
    if (!read_number(text.substr(0, slash), 0.01f, 100.0f, step)) return false;
    out.push_back(step);
    if (out.size() > FeedbackSearch::kMaxSteps) return false;
    if (slash == text.npos) return true;
    text.remove_prefix(slash + 1);
  }
}

constexpr const char* kGroups =
    "auto, or a multiple of 4 up to 512 that divides the model's head_dim (or 64, where codes go by channel)";
constexpr const char* kBits = "1, 2, 3, 4 or 8";
constexpr const char* kClips = "a ratio in (0, 1], 'search' (per layer, from the calibration file) or 'off'";

constexpr const char* kExponents = "a number from 0 (a rotation) to 1";

constexpr Parameter kParameters[] = {
    {"clip", kClips, Parameter::Of::AffineCodes,
     [](std::string_view t, Method& m) { return read_clip(t, m.clip_k) && read_clip(t, m.clip_v); }, nullptr},
    {"clip-k", kClips, Parameter::Of::AffineKeys,
     [](std::string_view t, Method& m) { return read_clip(t, m.clip_k); },
     [](const Method& m) { return clip_text(m.clip_k); }},
    {"clip-v", kClips, Parameter::Of::AffineValues,
     [](std::string_view t, Method& m) { return read_clip(t, m.clip_v); },
     [](const Method& m) { return clip_text(m.clip_v); }},
    {"group", kGroups, Parameter::Of::AllCodes,
     [](std::string_view t, Method& m) { return read_group(t, m.k.group) && read_group(t, m.v.group); },
     [](const Method& m) { return m.k.group == m.v.group ? group_text(m.k.group) : ""; }},
    {"group-k", kGroups, Parameter::Of::AllCodes,
     [](std::string_view t, Method& m) { return read_group(t, m.k.group); },
     [](const Method& m) { return m.k.group == m.v.group ? "" : group_text(m.k.group); }},
    {"group-v", kGroups, Parameter::Of::AllCodes,
     [](std::string_view t, Method& m) { return read_group(t, m.v.group); },
     [](const Method& m) { return m.k.group == m.v.group ? "" : group_text(m.v.group); }},
    {"bits", kBits, Parameter::Of::AllCodes,
     [](std::string_view t, Method& m) { return read_bits(t, m.k.bits) && read_bits(t, m.v.bits); },
     [](const Method& m) { return of_both(m.k.bits, m.v.bits); }},
    {"bits-k", kBits, Parameter::Of::AllCodes,
     [](std::string_view t, Method& m) { return read_bits(t, m.k.bits); },
     [](const Method& m) { return of_one(m.k.bits, m.v.bits, m.k.bits); }},
    {"bits-v", kBits, Parameter::Of::AllCodes,
     [](std::string_view t, Method& m) { return read_bits(t, m.v.bits); },
     [](const Method& m) { return of_one(m.k.bits, m.v.bits, m.v.bits); }},
    {"offset", "on, off (a scale alone, levels about zero) or symmetric (a scale alone, zero is a level)",
     Parameter::Of::AffineCodes,
     [](std::string_view t, Method& m) {
       return read_word(kOffsets, t, m.k.offset) && (m.v.offset = m.k.offset, true);
     },
     [](const Method& m) { return word_of(kOffsets, m.k.offset); }},
    {"norm", "on (tokens divided by their norm over all KV heads) or off", Parameter::Of::ChannelKeys,
     [](std::string_view t, Method& m) { return read_word(kNorms, t, m.k.norm); },
     [](const Method& m) { return word_of(kNorms, m.k.norm); }},
    {"kept", "tokens of a page whose keys stay in bf16, 0 to 8", Parameter::Of::ChannelKeys,
     [](std::string_view t, Method& m) { return read_number(t, 0, 8, m.k.kept); },
     [](const Method& m) { return fmt::format("{}", m.k.kept); }},
    {"wide", "channels of 64 with 4 bits instead of 2, 0 to 64", Parameter::Of::ChannelKeys,
     [](std::string_view t, Method& m) { return read_number(t, 0, 64, m.k.wide); },
     [](const Method& m) { return fmt::format("{}", m.k.wide); }},
    {"qjl", "off, k, v or both: the last bit is the sign of a projection of what the others leave over",
     Parameter::Of::GaussCodes, read_qjl, qjl_text},
    {"norm-rule", "corrected (decoded vectors have the norm of the original) or plain",
     Parameter::Of::GaussCodes,
     [](std::string_view t, Method& m) { return read_word(kNormRules, t, m.norm_rule); },
     [](const Method& m) { return word_of(kNormRules, m.norm_rule); }},
    {"hadamard", "on, off, or the channels of a block (16, 32, 64, …)", Parameter::Of::Uncalibrated,
     read_hadamard, hadamard_text},
    {"hadamard-of", "both, k or v", Parameter::Of::Uncalibrated,
     [](std::string_view t, Method& m) { return read_word(kTransformSides, t, m.transform_sides); },
     [](const Method& m) { return word_of(kTransformSides, m.transform_sides); }},
    {"range", "minmax, integer (zero is a level) or lloyd (cells for a Gaussian)",
     Parameter::Of::RoundedCodes,
     [](std::string_view t, Method& m) { return read_word(kRanges, t, m.range); },
     [](const Method& m) { return word_of(kRanges, m.range); }},
    {"layers",
     "none, or lists of layers (negative: from the end) and their form, as in 0/1/-1=int8+5=bf16+7=k3v2 "
     "(--kv-layers '0,1,-1=int8 5=bf16 7=k3v2')",
     Parameter::Of::AllCodes, [](std::string_view t, Method& m) { return read_overrides(t, m.overrides); },
     [](const Method& m) { return overrides_text(m.overrides); }},
    {"rotation", "u, uh or uhp", Parameter::Of::Calibrated,
     [](std::string_view t, Method& m) { return read_word(kRecipes, t, m.recipe); },
     [](const Method& m) { return word_of(kRecipes, m.recipe); }},
    {"share", "head or layer", Parameter::Of::Calibrated,
     [](std::string_view t, Method& m) { return read_word(kSharings, t, m.sharing); },
     [](const Method& m) { return word_of(kSharings, m.sharing); }},
    {"target-v", "paper, energy or cov", Parameter::Of::Calibrated,
     [](std::string_view t, Method& m) { return read_word(kTargets, t, m.value_target); },
     [](const Method& m) { return word_of(kTargets, m.value_target); }},
    {"centre", "k or off", Parameter::Of::Calibrated,
     [](std::string_view t, Method& m) { return read_word(kCentrings, t, m.centring); },
     [](const Method& m) { return word_of(kCentrings, m.centring); }},
    {"whiten", kExponents, Parameter::Of::Calibrated,
     [](std::string_view t, Method& m) {
       return read_number(t, 0.0f, 1.0f, m.whiten_k) && read_number(t, 0.0f, 1.0f, m.whiten_v);
     },
     nullptr},
    {"whiten-k", kExponents, Parameter::Of::Calibrated,
     [](std::string_view t, Method& m) { return read_number(t, 0.0f, 1.0f, m.whiten_k); },
     [](const Method& m) { return fmt::format("{}", m.whiten_k); }},
    {"whiten-v", kExponents, Parameter::Of::Calibrated,
     [](std::string_view t, Method& m) { return read_number(t, 0.0f, 1.0f, m.whiten_v); },
     [](const Method& m) { return fmt::format("{}", m.whiten_v); }},
    {"feedback", "k, v or both; the other side is rounded", Parameter::Of::Feedback,
     [](std::string_view t, Method& m) { return read_word(kSides, t, m.sides); },
     [](const Method& m) { return word_of(kSides, m.sides); }},
    {"damp", "a number from 1e-6 to 100", Parameter::Of::Feedback,
     [](std::string_view t, Method& m) { return read_number(t, 1e-6f, 100.0f, m.damp); },
     [](const Method& m) { return fmt::format("{}", m.damp); }},
    {"steps", "auto (by the bits), or 1 to 8 numbers from 0.01 to 100, split by '/'", Parameter::Of::Feedback,
     [](std::string_view t, Method& m) { return read_steps(t, m.steps); },
     [](const Method& m) { return m.steps.empty() ? "auto" : fmt::format("{}", fmt::join(m.steps, "/")); }},
    {"refit", "a number of least-squares fits from 0 to 8", Parameter::Of::Feedback,
     [](std::string_view t, Method& m) { return read_number(t, 0, kMaxRefits, m.refits); },
     [](const Method& m) { return fmt::format("{}", m.refits); }},
};

std::string parameter_list(const Method& method) {
  std::string list;
  for (const Parameter& p : kParameters) {
    if (takes(method, p)) list += fmt::format("{}{} ({})", list.empty() ? "" : "; ", p.name, p.allowed);
  }
  return list.empty() ? fmt::format("{} takes none", method.name)
                      : fmt::format("parameters of {}: {}", method.name, list);
}

}  // namespace

std::span<const Parameter> method_parameters() {
  return kParameters;
}

bool takes(const Method& method, const Parameter& parameter) {
  if (!method.quantized()) return false;
  const auto is = [](const SideFormat& side, CodecId codec) { return side.codec == codec; };
  switch (parameter.methods) {
    case Parameter::Of::AllCodes:
      return true;
    case Parameter::Of::AffineCodes:
      return is(method.k, CodecId::Affine) && is(method.v, CodecId::Affine);
    case Parameter::Of::AffineKeys:
      return is(method.k, CodecId::Affine);
    case Parameter::Of::AffineValues:
      return is(method.v, CodecId::Affine);
    case Parameter::Of::ChannelKeys:
      return is(method.k, CodecId::Channel);
    case Parameter::Of::GaussCodes: {
      const auto gauss = [&](const SideFormat& side) {
        return is(side, CodecId::Gauss) || is(side, CodecId::Qjl);
      };
      return gauss(method.k) && gauss(method.v);
    }
    case Parameter::Of::RoundedCodes:
      return method.coder == CoderKind::Round && is(method.v, CodecId::Affine);
    case Parameter::Of::Uncalibrated:
      return method.transform != TransformKind::Calibrated;
    case Parameter::Of::Calibrated:
      return method.transform == TransformKind::Calibrated;
    case Parameter::Of::Feedback:
      return method.coder == CoderKind::Feedback;
  }
  return false;
}

const Parameter& read_parameter(std::string_view item, Method& method) {
  const size_t equals = item.find('=');
  const std::string_view name = item.substr(0, equals);
  for (const Parameter& p : kParameters) {
    if (name != p.name || !takes(method, p)) continue;
    if (equals == item.npos || !p.read(item.substr(equals + 1), method)) {
      throw_error(ErrorCode::BadArgument, "method {}: '{}' is no value of {}; allowed: {}", method.name,
                  equals == item.npos ? std::string_view() : item.substr(equals + 1), p.name, p.allowed);
    }
    return p;
  }
  throw_error(ErrorCode::BadArgument, "method {}: unknown parameter '{}'; {}", method.name, name,
              parameter_list(method));
}

namespace {

void validate_rounding(const Method& m) {
  if (m.transform == TransformKind::Identity && m.transform_sides != TransformSides::Both)
    throw_error(ErrorCode::BadArgument, "method {}: hadamard-of=k or v has no effect with hadamard=off",
                m.name);
  const auto refuse_search = [&](const char* name, const std::optional<float>& clip, CoderKind coder,
                                 int bits) {
    if (clip || coder != CoderKind::Round || bits == 2) return;
    throw_error(ErrorCode::BadArgument,
                "method {}: clips are searched for 2 bits; with {} bits give {}=off or a ratio", m.name, bits,
                name);
  };
  refuse_search("clip-k", m.clip_k, m.coder_k(), m.k.bits);
  refuse_search("clip-v", m.clip_v, m.coder_v(), m.v.bits);
  const auto refuse_eight = [&](const char* name, int bits, CoderKind coder, const char* instead) {
    if (bits != 8 || coder != CoderKind::Feedback) return;
    throw_error(ErrorCode::BadArgument, "method {}: error feedback has 1 to 4 bits; with {}={} give {}",
                m.name, name, bits, instead);
  };
  if (m.k.bits == 8 && m.v.bits == 8) refuse_eight("bits", 8, m.coder, "the method int8 instead");
  refuse_eight("bits-k", m.k.bits, m.coder_k(), "feedback=v,clip-k=off, too");
  refuse_eight("bits-v", m.v.bits, m.coder_v(), "feedback=k,clip-v=off, too");
  for (const LayerOverride& o : m.overrides) {
    if (o.form != LayerOverride::Form::Bits) continue;
    refuse_eight("layers=…k", o.bits_k, m.coder_k(), "int8 there");
    refuse_eight("layers=…v", o.bits_v, m.coder_v(), "int8 there");
  }
  if (m.range == RangeRule::LloydMax && (m.k.bits != 2 || m.v.bits != 2))
    throw_error(ErrorCode::BadArgument, "method {}: range=lloyd is for 2 bits, found {} and {}", m.name,
                m.k.bits, m.v.bits);
  if (m.range != RangeRule::MinMax && m.k.offset != OffsetKind::Stored)
    throw_error(ErrorCode::BadArgument,
                "method {}: without an offset the range is always the largest magnitude", m.name);
  if (m.coder == CoderKind::Feedback && m.k.offset == OffsetKind::Symmetric)
    throw_error(ErrorCode::BadArgument, "method {}: error feedback has offset on or off, not symmetric",
                m.name);
}

}  // namespace

// A clip is of the coder `round`: for a side that `feedback` codes it would do nothing.
void validate_coder(const Method& method) {
  validate_rounding(method);
  for (const float whiten : {method.whiten_k, method.whiten_v}) {
    if (whiten >= 0 && whiten <= 1) continue;
    throw_error(ErrorCode::BadArgument, "method {}: whiten is {}; it must be from 0 to 1", method.name,
                whiten);
  }
  if (method.coder != CoderKind::Feedback) return;
  const auto refuse_clip = [&](const char* name, const std::optional<float>& clip, CoderKind coder,
                               const char* other) {
    if (clip && coder == CoderKind::Feedback) {
      throw_error(ErrorCode::BadArgument,
                  "method {}: {} has no effect, error feedback chooses scale and offset without a clip; give "
                  "feedback={} to round this side, or steps=… instead",
                  method.name, name, other);
    }
  };
  refuse_clip("clip-k", method.clip_k, method.coder_k(), "v");
  refuse_clip("clip-v", method.clip_v, method.coder_v(), "k");
  if (!sound_damp(method.damp)) {
    throw_error(ErrorCode::BadArgument, "method {}: damp is {}; it must be from 1e-6 to 100", method.name,
                method.damp);
  }
  if (method.steps.size() > FeedbackSearch::kMaxSteps ||
      !std::all_of(method.steps.begin(), method.steps.end(), sound_step)) {
    throw_error(ErrorCode::BadArgument,
                "method {}: steps are [{}]; it takes up to {} numbers from 0.01 to 100", method.name,
                fmt::join(method.steps, ", "), FeedbackSearch::kMaxSteps);
  }
  if (method.refits < 0 || method.refits > kMaxRefits) {
    throw_error(ErrorCode::BadArgument, "method {}: refit is {}; it must be from 0 to {}", method.name,
                method.refits, kMaxRefits);
  }
}

}  // namespace kv2
