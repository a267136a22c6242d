// SPDX-License-Identifier: Apache-2.0
// A file is described as one JSON document; the text for people is printed from that document, so that both
// say the same.
// clang-format off
//   {"file", "kind", "bytes", "metadata": [{"key", "type", "value"} or {"key", "type", "count", "first"}],
//    "tensors": [{"name", "type", "shape", "bytes"}], "totals": {…}, "layers": [{"clip_k", "clip_v"}] (calibrations)}
// clang-format on
#include "formats/inspect.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "formats/calibration_file.h"
#include "formats/gguf.h"
#include "formats/quote.h"
#include "formats/recognize.h"
#include "formats/safetensors.h"

namespace kv2 {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownElements = 8;

Json gguf_entry(const std::string& key, const GgufValue& v) {
  Json entry = {{"key", key}, {"type", v.type_text()}};
  const auto add = [&](const auto& x) {
    using T = std::decay_t<decltype(x)>;
    if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
      entry["value"] = x;
    } else {
      entry["count"] = x.size();
      Json first = Json::array();
      for (size_t i = 0; i < std::min(x.size(), kShownElements); i++)
        first.push_back(typename T::value_type(x[i]));
      entry["first"] = std::move(first);
    }
  };
  std::visit(add, v.value);
  return entry;
}

/// Top-level keys of a JSON text that has been checked when its directory was opened.
void add_config(Json& metadata, const std::string& file, const std::string& text) {
  Json config = Json::parse(text, nullptr, false);
  if (!config.is_object()) throw_error(ErrorCode::BadFile, "{}: bad JSON", file);
  for (const auto& [key, value] : config.items())
    metadata.push_back({{"key", file + ": " + key}, {"type", value.type_name()}, {"value", value}});
}

Json text_entries(const std::map<std::string, std::string>& metadata) {
  Json out = Json::array();
  for (const auto& [key, text] : metadata) out.push_back({{"key", key}, {"type", "string"}, {"value", text}});
  return out;
}

void add_tensors(Json& doc, const TensorFile& file) {
  Json tensors = Json::array(), types = Json::object();
  uint64_t elements = 0, bytes = 0;
  std::map<std::string, int64_t> counts;
  for (const TensorInfo& t : file.tensors()) {
    tensors.push_back({{"name", t.name}, {"type", t.type}, {"shape", t.shape}, {"bytes", t.bytes}});
    elements += static_cast<uint64_t>(t.n_elements());
    bytes += t.bytes;
    counts[t.type]++;
  }
  for (const auto& [type, n] : counts) types[type] = n;
  doc["totals"] = {
      {"tensors", file.tensors().size()}, {"elements", elements}, {"bytes", bytes}, {"types", types}};
  doc["tensors"] = std::move(tensors);
}

Json describe_directory(const std::string& path) {
  const auto file = HfDirectory::open(path);
  Json doc = {{"file", path}, {"kind", file->kind()}};
  Json metadata = Json::array();
  add_config(metadata, "config.json", file->config_json());
  if (!file->generation_json().empty())
    add_config(metadata, "generation_config.json", file->generation_json());
  doc["metadata"] = std::move(metadata);
  add_tensors(doc, *file);
  return doc;
}

Json describe_gguf(std::span<const std::byte> bytes, const std::string& name) {
  const auto file = GgufFile::parse(bytes, name);
  Json doc = {{"file", name}, {"kind", file->kind()}, {"bytes", bytes.size()}};
  Json metadata = Json::array();
  for (const auto& [key, value] : file->metadata()) metadata.push_back(gguf_entry(key, value));
  doc["metadata"] = std::move(metadata);
  add_tensors(doc, *file);
  return doc;
}

Json describe_safetensors(std::span<const std::byte> bytes, const std::string& name, FileKind kind) {
  const auto file = SafetensorsFile::parse(bytes, name);
  const bool calibration = kind == FileKind::Calibration;
  Json doc = {{"file", name}, {"kind", calibration ? "calibration" : file->kind()}, {"bytes", bytes.size()}};
  doc["metadata"] = text_entries(file->metadata());
  add_tensors(doc, *file);
  if (!calibration) return doc;
  Json layers = Json::array();
  for (const LayerCalibration& l : read_calibration(*file).layers)
    layers.push_back({{"clip_k", l.clip_k}, {"clip_v", l.clip_v}});
  doc["layers"] = std::move(layers);
  return doc;
}

Json describe(std::span<const std::byte> bytes, const std::string& name) {
  const FileKind kind = recognize(bytes);
  if (kind == FileKind::Gguf) return describe_gguf(bytes, name);
  if (kind != FileKind::Other) return describe_safetensors(bytes, name, kind);
  throw_error(
      ErrorCode::BadFile,
      "{}: unknown kind of file; GGUF, safetensors, calibration files and Hugging Face directories are "
      "supported",
      name);
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// One value on one line.
std::string value_text(const Json& value) {
  if (value.is_string()) return quote(value.get_ref<const std::string&>());
  const std::string text = dump(value);
  return text.size() <= 80 ? text : quote(text);
}

std::string entry_text(const Json& entry) {
  if (!entry.contains("count")) return value_text(entry["value"]);
  const size_t count = entry["count"].get<size_t>();
  std::string out = fmt::format("[{}] ", count);
  for (const Json& x : entry["first"]) out += value_text(x) + ", ";
  if (count > kShownElements) return out + "…";
  if (count > 0) out.resize(out.size() - 2);
  return out;
}

/// Columns padded to the widest cell; the last one is left as it is. Cells are printable ASCII but for "…" at
/// their end.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> width;
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); i++) {
      if (i == width.size()) width.push_back(0);
      width[i] = std::max(width[i], row[i].size());
    }
  std::string out;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); i++)
      out += i + 1 < row.size() ? fmt::format("  {:<{}}", row[i], width[i]) : "  " + row[i];
    out += '\n';
  }
  return out;
}

/// A name without the quotes around it, but with its escapes.
std::string bare(const Json& name) {
  const std::string quoted = quote(name.get_ref<const std::string&>());
  return quoted.substr(1, quoted.size() - 2);
}

std::string to_text(const Json& doc) {
  std::string out = fmt::format("{}: {}\n", doc["file"].get<std::string>(), doc["kind"].get<std::string>());
  std::vector<std::vector<std::string>> rows;
  for (const Json& entry : doc["metadata"])
    rows.push_back({bare(entry["key"]), entry["type"].get<std::string>(), entry_text(entry)});
  out += fmt::format("\nmetadata: {} keys\n", rows.size()) + table(rows);
  if (doc.contains("layers")) {
    rows = {{"layer", "clip_k", "clip_v"}};
    for (size_t i = 0; i < doc["layers"].size(); i++) {
      const Json& l = doc["layers"][i];
      rows.push_back({std::to_string(i), fmt::format("{:.4f}", l["clip_k"].get<float>()),
                      fmt::format("{:.4f}", l["clip_v"].get<float>())});
    }
    out += "\nclips\n" + table(rows);
  }
  const Json& totals = doc["totals"];
  out += fmt::format("\ntensors: {}, {} elements, {} bytes", totals["tensors"].get<size_t>(),
                     totals["elements"].get<uint64_t>(), totals["bytes"].get<uint64_t>());
  for (const auto& [type, n] : totals["types"].items()) out += fmt::format(", {} {}", n.get<int64_t>(), type);
  rows.clear();
  for (const Json& t : doc["tensors"])
    rows.push_back({bare(t["name"]), t["type"].get<std::string>(),
                    fmt::format("[{}]", fmt::join(t["shape"].get<std::vector<int64_t>>(), ", ")),
                    fmt::format("{} bytes", t["bytes"].get<uint64_t>())});
  return out + "\n" + table(rows);
}

}  // namespace

std::string inspect_bytes(std::span<const std::byte> bytes, const std::string& name, bool json) {
  const Json doc = describe(bytes, name);
  return json ? dump(doc) + "\n" : to_text(doc);
}

std::string inspect_file(const std::string& path, bool json) {
  std::error_code ec;
  if (!std::filesystem::is_directory(path, ec)) return inspect_bytes(MappedFile(path).bytes(), path, json);
  const Json doc = describe_directory(path);
  return json ? dump(doc) + "\n" : to_text(doc);
}

}  // namespace kv2
