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
  int group = 0;
  return read_number(text, 4, kMaxHeadDim, group) && group % 4 == 0 && (out = group, true);
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

constexpr const char* kClips = "a ratio in (0, 1], 'search' (per layer, from the calibration file) or 'off'";

constexpr Parameter kParameters[] = {
    {"clip", kClips, Parameter::Of::AllCodes,
     [](std::string_view t, Method& m) { return read_clip(t, m.clip_k) && read_clip(t, m.clip_v); }, nullptr},
    {"clip-k", kClips, Parameter::Of::AllCodes,
     [](std::string_view t, Method& m) { return read_clip(t, m.clip_k); },
     [](const Method& m) { return clip_text(m.clip_k); }},
    {"clip-v", kClips, Parameter::Of::AllCodes,
     [](std::string_view t, Method& m) { return read_clip(t, m.clip_v); },
     [](const Method& m) { return clip_text(m.clip_v); }},
    {"group", "a multiple of 4 up to 512 that divides the model's head_dim", Parameter::Of::AllCodes,
     [](std::string_view t, Method& m) { return read_group(t, m.group); },
     [](const Method& m) { return fmt::format("{}", m.group); }},
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
    {"whiten", "a number from 0 (a rotation) to 1", Parameter::Of::Calibrated,
     [](std::string_view t, Method& m) { return read_number(t, 0.0f, 1.0f, m.whiten); },
     [](const Method& m) { return fmt::format("{}", m.whiten); }},
    {"feedback", "k, v or both; the other side is rounded", Parameter::Of::Feedback,
     [](std::string_view t, Method& m) { return read_word(kSides, t, m.sides); },
     [](const Method& m) { return word_of(kSides, m.sides); }},
    {"damp", "a number from 1e-6 to 100", Parameter::Of::Feedback,
     [](std::string_view t, Method& m) { return read_number(t, 1e-6f, 100.0f, m.damp); },
     [](const Method& m) { return fmt::format("{}", m.damp); }},
    {"steps", "1 to 8 numbers from 0.01 to 100, split by '/'", Parameter::Of::Feedback,
     [](std::string_view t, Method& m) { return read_steps(t, m.steps); },
     [](const Method& m) { return fmt::format("{}", fmt::join(m.steps, "/")); }},
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
  if (parameter.methods == Parameter::Of::Calibrated) return method.transform == TransformKind::Calibrated;
  if (parameter.methods == Parameter::Of::Feedback) return method.coder == CoderKind::Feedback;
  return true;
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

// A clip is of the coder `round`: for a side that `feedback` codes it would do nothing.
void validate_coder(const Method& method) {
  if (!(method.whiten >= 0 && method.whiten <= 1)) {
    throw_error(ErrorCode::BadArgument, "method {}: whiten is {}; it must be from 0 to 1", method.name,
                method.whiten);
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
  if (method.steps.empty() || method.steps.size() > FeedbackSearch::kMaxSteps ||
      !std::all_of(method.steps.begin(), method.steps.end(), sound_step)) {
    throw_error(ErrorCode::BadArgument,
                "method {}: steps are [{}]; it takes 1 to {} numbers from 0.01 to 100", method.name,
                fmt::join(method.steps, ", "), FeedbackSearch::kMaxSteps);
  }
  if (method.refits < 0 || method.refits > kMaxRefits) {
    throw_error(ErrorCode::BadArgument, "method {}: refit is {}; it must be from 0 to {}", method.name,
                method.refits, kMaxRefits);
  }
}

}  // namespace kv2
