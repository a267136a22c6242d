// SPDX-License-Identifier: Apache-2.0
// What a file is, by its content, never by its name. A guess for dispatch and messages: the parsers decide.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace kv2 {

enum class FileKind { Gguf, Safetensors, Calibration, Other };

/// metadata "format" of a calibration file.
inline constexpr std::string_view kCalibrationFormat = "kv2-calibration";

FileKind recognize(std::span<const std::byte> file);
/// "a GGUF file", "a kv2 calibration file", …
std::string_view kind_text(FileKind kind);

}  // namespace kv2
