// SPDX-License-Identifier: Apache-2.0
#include "formats/calibration_file.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mmap.h"
#include "formats/quote.h"
#include "formats/recognize.h"

namespace kv2 {
namespace {

constexpr std::string_view kMethod = "oscar", kNotes = "notes.", kToolVersion = "tool_version",
                           kChecksum = "checksum";
constexpr int kVersionWithoutChecksum = 2;
constexpr int64_t kMaxHeads = 4096, kMaxHeadDim = 4096, kMaxLayers = 65536;
constexpr size_t kMaxFingerprint = 256;

struct Field {
  std::string_view name;
  std::vector<float> LayerCalibration::*values;
  bool matrix;  // [n_kv_heads, head_dim, head_dim], else [n_kv_heads, head_dim]
};
constexpr std::array<Field, 10> kFields = {{{"c_q", &LayerCalibration::c_q, true},
                                            {"c_s", &LayerCalibration::c_s, true},
                                            {"c_s_energy", &LayerCalibration::c_s_energy, true},
                                            {"k_cov", &LayerCalibration::k_cov, true},
                                            {"k_mean", &LayerCalibration::k_mean, false},
                                            {"k_pre_cov", &LayerCalibration::k_pre_cov, true},
                                            {"k_pre_mean", &LayerCalibration::k_pre_mean, false},
                                            {"v_cov", &LayerCalibration::v_cov, true},
                                            {"v_mean", &LayerCalibration::v_mean, false},
                                            {"metric_v", &LayerCalibration::metric_v, true}}};
constexpr size_t kTensorsPerLayer = kFields.size() + 1;  // and clips

std::string tensor_name(size_t layer, std::string_view field) {
  return fmt::format("layer.{}.{}", layer, field);
}

std::vector<int64_t> shape_of(const Field& f, const Calibration& c) {
  if (f.matrix) return {c.n_kv_heads, c.head_dim, c.head_dim};
  return {c.n_kv_heads, c.head_dim};
}

/// What is wrong with the numbers of a tensor, or an empty text.
std::string problem_of(std::string_view field, std::span<const float> values) {
  for (size_t i = 0; i < values.size(); i++) {
    if (!std::isfinite(values[i])) return fmt::format("value {} is {}; all must be finite", i, values[i]);
    if (field == "clips" && !(values[i] > 0 && values[i] <= 1))
      return fmt::format("the clip of {} is {}; clips lie in (0, 1]", i == 0 ? "K" : "V", values[i]);
  }
  return {};
}

const std::string& require_text(const SafetensorsFile& file, const std::string& key) {
  const auto it = file.metadata().find(key);
  if (it == file.metadata().end())
    throw_error(ErrorCode::BadFile, "{}: the calibration's metadata has no {}", file.name(), quote(key));
  return it->second;
}

int64_t require_integer(const SafetensorsFile& file, const std::string& key, int64_t min, int64_t max) {
  const std::string& text = require_text(file, key);
  int64_t x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error != std::errc() || end != text.data() + text.size() || x < min || x > max)
    throw_error(ErrorCode::BadFile, "{}: metadata {} is {}; expected an integer from {} to {}", file.name(),
                quote(key), quote(text), min, max);
  return x;
}

/// The tensor as floats after its type, shape and values have been checked; the file holds every byte that is
/// allocated.
std::vector<float> read_tensor(const SafetensorsFile& file, size_t layer, std::string_view field,
                               const std::vector<int64_t>& shape) {
  const std::string name = tensor_name(layer, field);
  const TensorInfo* t = file.find(name);
  if (!t)
    throw_error(ErrorCode::BadFile,
                "{}: tensor {} is missing; make the file again with `kv2 calibrate MODEL`", file.name(),
                quote(name));
  if (t->type != "F32" || t->shape != shape)
    throw_error(ErrorCode::BadFile, "{}: tensor {}: expected F32 [{}], found {} [{}]", file.name(),
                quote(name), fmt::join(shape, ", "), t->type, fmt::join(t->shape, ", "));
  const auto bytes = file.raw(*t);
  std::vector<float> out(bytes.size() / sizeof(float));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  if (const std::string problem = problem_of(field, out); !problem.empty())
    throw_error(ErrorCode::BadFile, "{}: tensor {}: {}", file.name(), quote(name), problem);
  return out;
}

/// Of format 2, and without the key: one flipped bit makes a 2 of a 3.
bool lacks_checksum(const SafetensorsFile& file) {
  return require_text(file, "format_version") == std::to_string(kVersionWithoutChecksum) &&
         !file.metadata().contains(std::string(kChecksum));
}

/// Of everything but itself: metadata by name, tensors in the file's order.
template <class Tensors, class BytesOf>
std::string checksum(const std::map<std::string, std::string>& metadata, const Tensors& tensors,
                     const BytesOf& bytes_of) {
  Hash128 hash;
  for (const auto& [key, text] : metadata) {
    if (key == kChecksum) continue;
    hash.add_text(key);
    hash.add_text(text);
  }
  for (const auto& t : tensors) {
    hash.add_text(t.name);
    hash.add(bytes_of(t));
  }
  return hash.hex();
}

void require_undamaged(const SafetensorsFile& file) {
  const std::string& expected = require_text(file, std::string(kChecksum));
  const std::string found =
      checksum(file.metadata(), file.tensors(), [&](const TensorInfo& t) { return file.raw(t); });
  if (found != expected)
    throw_error(
        ErrorCode::BadFile,
        "{}: its contents have the checksum {}, its metadata says {}: the file is damaged; make it again "
        "with `kv2 calibrate MODEL`",
        file.name(), found, quote(expected));
}

void require_calibration(const SafetensorsFile& file) {
  const auto it = file.metadata().find("format");
  if (it == file.metadata().end() || it->second != kCalibrationFormat)
    throw_error(ErrorCode::BadFile,
                "{}: a safetensors file, but no calibration; `kv2 calibrate MODEL` makes one", file.name());
  const std::string& version = require_text(file, "format_version");
  if (version != std::to_string(Calibration::kFormatVersion) &&
      version != std::to_string(kVersionWithoutChecksum))
    throw_error(ErrorCode::Unsupported,
                "{}: calibration format {}; formats {} and {} are supported, make the file again with "
                "`kv2 calibrate MODEL`",
                file.name(), quote(version), kVersionWithoutChecksum, Calibration::kFormatVersion);
  if (const std::string& method = require_text(file, "method"); method != kMethod)
    throw_error(ErrorCode::Unsupported, "{}: calibration method {}; {} is supported", file.name(),
                quote(method), kMethod);
}

/// Throws unless this can be read back.
void check_for_saving(const Calibration& c, const std::string& path) {
  KV2_CHECK(!c.model_fingerprint.empty() && c.model_fingerprint.size() <= kMaxFingerprint);
  KV2_CHECK(c.n_kv_heads > 0 && c.n_kv_heads <= kMaxHeads && c.head_dim > 0 && c.head_dim <= kMaxHeadDim);
  KV2_CHECK(!c.layers.empty() && c.layers.size() <= static_cast<size_t>(kMaxLayers) && c.n_tokens > 0);
  for (size_t i = 0; i < c.layers.size(); i++) {
    const LayerCalibration& layer = c.layers[i];
    const auto check = [&](std::string_view field, std::span<const float> values) {
      if (const std::string problem = problem_of(field, values); !problem.empty())
        throw_error(ErrorCode::BadArgument, "cannot save {}: {}: {}", path, tensor_name(i, field), problem);
    };
    for (const Field& f : kFields) {
      size_t n = 1;
      for (const int64_t d : shape_of(f, c)) n *= static_cast<size_t>(d);
      KV2_CHECK((layer.*f.values).size() == n, "{}: {} values, expected {}", tensor_name(i, f.name),
                (layer.*f.values).size(), n);
      check(f.name, layer.*f.values);
    }
    check("clips", std::array{layer.clip_k, layer.clip_v});
  }
}

std::map<std::string, std::string> metadata_of(const Calibration& c) {
  std::map<std::string, std::string> m = {{"format", std::string(kCalibrationFormat)},
                                          {"format_version", std::to_string(Calibration::kFormatVersion)},
                                          {"method", std::string(kMethod)},
                                          {"model_fingerprint", c.model_fingerprint},
                                          {"n_kv_heads", std::to_string(c.n_kv_heads)},
                                          {"head_dim", std::to_string(c.head_dim)},
                                          {"n_layers", std::to_string(c.layers.size())},
                                          {"n_tokens", std::to_string(c.n_tokens)},
                                          {"text_hash", c.text_hash},
                                          {std::string(kToolVersion), KV2_VERSION}};
  for (const auto& [key, text] : c.notes) {
    if (key == kToolVersion)
      m[key] = text;  // a file that is read and saved again keeps the version that measured it
    else
      m[std::string(kNotes) + key] = text;
  }
  return m;
}

}  // namespace

Calibration read_calibration(const SafetensorsFile& file) {
  require_calibration(file);
  Calibration c;
  c.model_fingerprint = require_text(file, "model_fingerprint");
  if (c.model_fingerprint.empty() || c.model_fingerprint.size() > kMaxFingerprint)
    throw_error(ErrorCode::BadFile, "{}: a model fingerprint of {} bytes; expected 1 to {}", file.name(),
                c.model_fingerprint.size(), kMaxFingerprint);
  c.n_kv_heads = static_cast<int>(require_integer(file, "n_kv_heads", 1, kMaxHeads));
  c.head_dim = static_cast<int>(require_integer(file, "head_dim", 1, kMaxHeadDim));
  c.n_tokens = require_integer(file, "n_tokens", 1, INT64_MAX);
  c.text_hash = require_text(file, "text_hash");
  c.notes[std::string(kToolVersion)] = require_text(file, std::string(kToolVersion));
  for (const auto& [key, text] : file.metadata())
    if (key.starts_with(kNotes)) c.notes[key.substr(kNotes.size())] = text;
  const size_t n_layers = static_cast<size_t>(require_integer(file, "n_layers", 1, kMaxLayers));
  if (file.tensors().size() != n_layers * kTensorsPerLayer)
    throw_error(
        ErrorCode::BadFile,
        "{}: {} tensors; a calibration of {} layers has {}; make the file again with `kv2 calibrate MODEL`",
        file.name(), file.tensors().size(), n_layers, n_layers * kTensorsPerLayer);
  c.layers.resize(n_layers);
  for (size_t i = 0; i < n_layers; i++) {
    for (const Field& f : kFields) c.layers[i].*f.values = read_tensor(file, i, f.name, shape_of(f, c));
    const std::vector<float> clips = read_tensor(file, i, "clips", {2});
    c.layers[i].clip_k = clips[0];
    c.layers[i].clip_v = clips[1];
  }
  if (!lacks_checksum(file))
    require_undamaged(file);  // last: what is wrong has its own message where one fits
  return c;
}

Calibration Calibration::load(const std::string& path) {
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec))
    throw_error(ErrorCode::BadFile,
                "{}: a directory, not a calibration file; `kv2 calibrate MODEL` makes one", path);
  if (const FileKind kind = recognize(MappedFile(path).bytes());
      kind == FileKind::Gguf || kind == FileKind::Other)
    throw_error(ErrorCode::BadFile, "{}: {}, not a calibration file; `kv2 calibrate MODEL` makes one", path,
                kind_text(kind));
  const auto file = SafetensorsFile::open(path);
  Calibration c = read_calibration(*file);
  if (lacks_checksum(*file))
    log_warning(fmt::format(
        "{}: calibration format {} has no checksum, damage would go unseen; `kv2 calibrate MODEL` makes one "
        "of format {}",
        path, kVersionWithoutChecksum, kFormatVersion));
  return c;
}

void Calibration::save(const std::string& path) const {
  check_for_saving(*this, path);
  std::vector<SafetensorsTensor> tensors;
  std::vector<std::array<float, 2>> clips(layers.size());
  for (size_t i = 0; i < layers.size(); i++) {
    for (const Field& f : kFields)
      tensors.push_back({tensor_name(i, f.name), DType::F32, shape_of(f, *this),
                         std::as_bytes(std::span(layers[i].*f.values))});
    clips[i] = {layers[i].clip_k, layers[i].clip_v};
    tensors.push_back({tensor_name(i, "clips"), DType::F32, {2}, std::as_bytes(std::span(clips[i]))});
  }
  std::map<std::string, std::string> metadata = metadata_of(*this);
  metadata[std::string(kChecksum)] =
      checksum(metadata, tensors, [](const SafetensorsTensor& t) { return t.bytes; });
  write_safetensors(path, metadata, tensors);
}

void Calibration::require_model(const std::string& fingerprint) const {
  if (fingerprint != model_fingerprint)
    throw_error(ErrorCode::Mismatch,
                "this calibration was made for model {}, but the model is {}; make one for it with "
                "`kv2 calibrate MODEL`",
                quote(model_fingerprint), quote(fingerprint));
}

}  // namespace kv2
