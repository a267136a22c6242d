// SPDX-License-Identifier: Apache-2.0
// Bodies of kv2/quant.h: argument checks around quant/int2 and the Hadamard matrices. No arithmetic of its
// own beyond the product with H.
#include "kv2/quant.h"

#include <vector>

#include "base/check.h"
#include "quant/int2/int2.h"
#include "quant/page_layout.h"
#include "quant/rotation.h"

namespace kv2 {
namespace {

/// The options as a layout and a coder, checked.
struct Shape {
  Int2Layout layout;
  Coder coder;
};

Shape checked(const QuantOptions& options) {
  const int d = options.head_dim, group = options.group != 0 ? options.group : default_group(d);
  if (d <= 0 || d > kMaxHeadDim || d % 4 != 0) {
    throw_error(ErrorCode::BadArgument, "head_dim is {}; it must be a multiple of 4 from 4 to {}", d,
                kMaxHeadDim);
  }
  if (group < 4 || group % 4 != 0 || d % group != 0) {
    throw_error(ErrorCode::BadArgument, "group is {}; it must be a multiple of 4 that divides head_dim {}",
                group, d);
  }
  if (!(options.clip > 0 && options.clip <= 1)) {
    throw_error(ErrorCode::BadArgument, "clip is {}; it must be in (0, 1]", options.clip);
  }
  return {.layout = {.head_dim = d, .group = group},
          .coder = {.group = group, .clip_index = clip_index(options.clip, d)}};
}

size_t n_params(const Int2Layout& layout) {
  return layout.params_bytes() / sizeof(fp16);
}
size_t n_elements(const Int2Layout& layout) {
  return static_cast<size_t>(kPageTokens) * layout.head_dim;
}

void check_size(const char* name, size_t found, size_t expected, const Int2Layout& layout) {
  if (found != expected) {
    throw_error(ErrorCode::BadArgument,
                "{} has {} elements, a page of {} rows at head_dim {} and group {} needs {}", name, found,
                kPageTokens, layout.head_dim, layout.group, expected);
  }
}

void check_sizes(const Int2Layout& layout, size_t rows, size_t codes, size_t params) {
  check_size("rows", rows, n_elements(layout), layout);
  check_size("codes", codes, layout.codes_bytes(), layout);
  check_size("params", params, n_params(layout), layout);
}

void encode(const std::vector<bf16>& rows, const Shape& shape, std::span<uint8_t> codes,
            std::span<uint16_t> params) {
  std::vector<fp16> pairs(params.size());
  const size_t d = static_cast<size_t>(shape.layout.head_dim);
  int2::encode_rows(rows.data(), d, shape.layout.head_dim, shape.coder, codes.data(), pairs.data());
  for (size_t i = 0; i < pairs.size(); ++i) params[i] = pairs[i].bits;
}

enum class Direction : uint8_t { Forward, Back };

void apply_hadamard(std::span<float> rows, int head_dim, Direction direction) {
  const std::vector<double> h = hadamard(head_dim);
  const size_t d = static_cast<size_t>(head_dim);
  if (rows.size() % d != 0) {
    throw_error(ErrorCode::BadArgument, "rows has {} elements, no multiple of head_dim {}", rows.size(),
                head_dim);
  }
  std::vector<double> product(d);
  for (size_t first = 0; first < rows.size(); first += d) {
    for (size_t j = 0; j < d; ++j) {
      double sum = 0;
      for (size_t i = 0; i < d; ++i) {
        sum += rows[first + i] * (direction == Direction::Forward ? h[i * d + j] : h[j * d + i]);
      }
      product[j] = sum;
    }
    for (size_t j = 0; j < d; ++j) rows[first + j] = static_cast<float>(product[j]);
  }
}

}  // namespace

size_t codes_size(const QuantOptions& options) {
  return checked(options).layout.codes_bytes();
}

size_t params_size(const QuantOptions& options) {
  return n_params(checked(options).layout);
}

double bits_per_element(const QuantOptions& options) {
  return 2.0 + 32.0 / checked(options).layout.group;
}

void encode_page(std::span<const float> rows, const QuantOptions& options, std::span<uint8_t> codes,
                 std::span<uint16_t> params) {
  const Shape shape = checked(options);
  check_sizes(shape.layout, rows.size(), codes.size(), params.size());
  std::vector<bf16> rounded(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) rounded[i] = to_bf16(rows[i]);
  encode(rounded, shape, codes, params);
}

void encode_page(std::span<const uint16_t> rows, const QuantOptions& options, std::span<uint8_t> codes,
                 std::span<uint16_t> params) {
  const Shape shape = checked(options);
  check_sizes(shape.layout, rows.size(), codes.size(), params.size());
  std::vector<bf16> typed(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) typed[i].bits = rows[i];
  encode(typed, shape, codes, params);
}

void decode_page(std::span<const uint8_t> codes, std::span<const uint16_t> params,
                 const QuantOptions& options, std::span<float> rows) {
  const Shape shape = checked(options);
  check_sizes(shape.layout, rows.size(), codes.size(), params.size());
  std::vector<fp16> pairs(params.size());
  for (size_t i = 0; i < pairs.size(); ++i) pairs[i].bits = params[i];
  int2::decode_rows(codes.data(), pairs.data(), shape.layout.head_dim, shape.layout.group, rows.data());
}

void rotate_hadamard(std::span<float> rows, int head_dim) {
  apply_hadamard(rows, head_dim, Direction::Forward);
}

void unrotate_hadamard(std::span<float> rows, int head_dim) {
  apply_hadamard(rows, head_dim, Direction::Back);
}

}  // namespace kv2
