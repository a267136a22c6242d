// SPDX-License-Identifier: Apache-2.0
#include "formats/recognize.h"

#include <cstring>

#include "formats/safetensors.h"
#include "formats/safetensors_header.h"
#include "kv2/error.h"

namespace kv2 {

FileKind recognize(std::span<const std::byte> file) {
  if (file.size() >= 4 && std::memcmp(file.data(), "GGUF", 4) == 0) return FileKind::Gguf;
  uint64_t n = 0;
  if (file.size() < sizeof n + 1) return FileKind::Other;
  std::memcpy(&n, file.data(), sizeof n);
  const auto rest = file.subspan(sizeof n);
  if (n > SafetensorsFile::kMaxHeaderBytes || rest[0] != std::byte{'{'}) return FileKind::Other;
  if (n > rest.size()) return FileKind::Safetensors;  // truncated
  try {
    const auto header = parse_safetensors_header({reinterpret_cast<const char*>(rest.data()), n}, "");
    const auto it = header.metadata.find("format");
    if (it != header.metadata.end() && it->second == kCalibrationFormat) return FileKind::Calibration;
  } catch (const Error&) {  // corrupted: the parser will say how
  }
  return FileKind::Safetensors;
}

std::string_view kind_text(FileKind kind) {
  switch (kind) {
    case FileKind::Gguf:
      return "a GGUF file";
    case FileKind::Safetensors:
      return "a safetensors file";
    case FileKind::Calibration:
      return "a kv2 calibration file";
    case FileKind::Other:
      break;
  }
  return "a file of unknown kind";
}

}  // namespace kv2
