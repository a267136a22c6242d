// SPDX-License-Identifier: Apache-2.0
// inspect_file: what `kv2 inspect FILE` prints. The kind is recognised by content, not by name.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace kv2 {

/// A GGUF file, a safetensors file, a calibration file or a Hugging Face directory: metadata with long values
/// cut, every tensor with type, shape and bytes, totals; for a calibration the clips of every layer. Text for
/// people, or with `json` one JSON object. Errors: those of the parsers; BadFile for any other kind of file.
std::string inspect_file(const std::string& path, bool json);
/// The same for the bytes of one file; `name` for the first line and for messages.
std::string inspect_bytes(std::span<const std::byte> bytes, const std::string& name, bool json);

}  // namespace kv2
