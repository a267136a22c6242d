// SPDX-License-Identifier: Apache-2.0
// Reads the first and the last row of every tensor of a parsed file, as a model would.
#pragma once

#include <algorithm>
#include <vector>

#include "formats/tensor_file.h"
#include "fuzz.h"

namespace kv2::fuzz {

inline void read_tensors(const TensorFile& file) {
  std::vector<float> out;
  for (const TensorInfo& t : file.tensors()) {
    if (file.find(t.name) != &t || file.raw(t).size() != t.bytes) std::abort();
    const bool vector = t.shape.size() < 2;
    const int64_t row = vector ? 1 : t.shape.back(), n_rows = row == 0 ? 0 : t.n_elements() / row;
    const int64_t n = std::min<int64_t>(n_rows, vector ? 300 : 2);
    out.resize(static_cast<size_t>(n * row));
    expect_error_at_most([&] {
      file.read_rows(t, 0, n, out.data());
      file.read_rows(t, n_rows - n, n, out.data());
    });
  }
}

}  // namespace kv2::fuzz
