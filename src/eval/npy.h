// SPDX-License-Identifier: Apache-2.0
// The two shapes of NumPy files that kv2 trades in: token ids in and out (1-d integers) and logits out (2-d
// float32, streamed). Little endian, C order, format versions 1 to 3. Nothing of a file is believed before it
// is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace kv2 {

/// Token ids of a .npy file: one dimension of int32, int64 or uint16.
/// Errors: Io; BadFile (truncated, trailing bytes, a value that is no int32); Unsupported (type, shape,
/// order, version).
std::vector<int32_t> read_npy_tokens(const std::string& path);
/// The same on bytes; `name` for messages.
std::vector<int32_t> parse_npy_tokens(std::span<const std::byte> bytes, const std::string& name);

/// Writes token ids as a one-dimensional int32 array, atomically. Errors: Io.
void write_npy_tokens(const std::string& path, std::span<const int32_t> tokens);

/// Appends rows (any whole number of values) to a file being written.
using AppendRows = std::function<void(std::span<const float>)>;
/// Writes a [n_rows, n_columns] float32 array row by row, atomically: `fill` appends exactly n_rows ·
/// n_columns values, and the file exists only when it is complete. Errors: Io.
void write_npy_rows(const std::string& path, int64_t n_rows, int64_t n_columns,
                    const std::function<void(const AppendRows&)>& fill);

}  // namespace kv2
