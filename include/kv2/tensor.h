// SPDX-License-Identifier: Apache-2.0
// TensorView: a borrowed n-dimensional array, row-major unless strides say otherwise. It owns nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kv2 {

enum class DType : uint8_t { F32, F16, BF16, I32, I64, U8 };

constexpr size_t size_of(DType t) {
  switch (t) {
    case DType::F32:
    case DType::I32:
      return 4;
    case DType::F16:
    case DType::BF16:
      return 2;
    case DType::I64:
      return 8;
    case DType::U8:
      return 1;
  }
  return 0;
}

struct TensorView {
  static constexpr int kMaxRank = 4;
  void* data = nullptr;
  DType dtype = DType::F32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};    // elements
  std::array<int64_t, kMaxRank> strides{};  // elements

  int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank; i++) n *= shape[i];
    return n;
  }
};

}  // namespace kv2
