// SPDX-License-Identifier: Apache-2.0
#include "cpu/coded_linear.h"

#include <algorithm>

#include "base/check.h"
#include "base/float16.h"

namespace kv2::cpu {
namespace {

constexpr int kRowTile = 128;   // rows whose halves stay in the second cache while strips pass by
constexpr int kTaskStrips = 8;  // at most: the strips of a task stay there too

bool exact_in_fp16(const std::vector<float>& x) {
  return std::all_of(x.begin(), x.end(), [](float v) { return to_float(to_fp16(v)) == v; });
}

}  // namespace

std::unique_ptr<Linear> CodedLinears::pack(const LinearSource& source) {
  const WeightCodes& c = source.coded;
  KV2_CHECK((c.bits == 4 || c.bits == 6 || c.bits == 8) && (c.block == 16 || c.block == 32) &&
                source.n_in % c.block == 0,
            "weights of {} bits in blocks of {} for {} inputs", c.bits, c.block, source.n_in);
  KV2_CHECK(source.bias.empty() || source.bias.size() == static_cast<size_t>(source.n_out),
            "bias of {} for {} outputs", source.bias.size(), source.n_out);
  auto linear = std::make_unique<CodedLinear>();
  StripShape& s = linear->shape_;
  s = StripShape::of(source.n_in, source.n_out, c);
  linear->bias_.assign(source.bias.begin(), source.bias.end());
  linear->strips_ = memory_.take(linear->strips_bytes());
  // Filled by this thread (a source need not be thread-safe), packed by the team, a few strips at a time.
  const int batch = std::max(1, std::min(s.n_strips(), 4 * team_.size()));
  const size_t rows = static_cast<size_t>(batch) * 16, width = static_cast<size_t>(s.n_in),
               parts = static_cast<size_t>(s.n_blocks());
  std::vector<uint8_t> codes(rows * width);
  std::vector<float> scale(rows * parts), offset(rows * parts);
  for (int first = 0; first < s.n_strips(); first += batch) {
    const int row0 = first * 16, n = std::min(batch * 16, s.n_out - row0);
    c.fill(row0, n, codes.data(), scale.data(), offset.data());
    if (s.half_params)
      KV2_CHECK(exact_in_fp16(scale) && (!s.has_offset || exact_in_fp16(offset)),
                "a scale that fp16 does not hold");
    team_.run((n + 15) / 16, [&](int64_t i, int) {
      const size_t row = static_cast<size_t>(i) * 16;
      pack_strip(
          s, std::min(16, n - static_cast<int>(row)), codes.data() + row * width, scale.data() + row * parts,
          offset.data() + row * parts,
          linear->strips_.get() + (static_cast<size_t>(first) + static_cast<size_t>(i)) * s.strip_bytes());
    });
  }
  return linear;
}

void CodedLinears::multiply(const CodedLinear& w, const LinearParams& p, AlignedBuffer& scratch) {
  if (p.n_rows <= 0) return;
  const StripShape& s = w.shape_;
  scratch.grow(CodedRows::bytes(p.n_rows, s.n_in, s.n_blocks()));
  const CodedRows rows = CodedRows::at(scratch.as<std::byte>(), p.n_rows, s.n_in, s.n_blocks());
  const auto code = [&](int first, int n) {
    for (int r = first; r < first + n; r++)
      code_row(p.in + static_cast<size_t>(r) * s.n_in, s.n_in, s.block, rows, r);
  };
  constexpr int kRowsPerTask = 8;
  if (p.n_rows <= kRowsPerTask)
    code(0, p.n_rows);
  else
    team_.run((p.n_rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t i, int) {
      const int first = static_cast<int>(i) * kRowsPerTask;
      code(first, std::min(kRowsPerTask, p.n_rows - first));
    });

  // A few tasks per worker: who waits for the last one waits for a short one.
  const int row_tiles = (p.n_rows + kRowTile - 1) / kRowTile;
  const int per_task = std::clamp(s.n_strips() * row_tiles / (6 * team_.size()), 1, kTaskStrips);
  const int chunks = (s.n_strips() + per_task - 1) / per_task;
  team_.run(static_cast<int64_t>(chunks) * row_tiles, [&](int64_t task, int) {
    const int first_row = static_cast<int>(task / chunks) * kRowTile,
              n = std::min(kRowTile, p.n_rows - first_row);
    const int first = static_cast<int>(task % chunks) * per_task,
              end = std::min(first + per_task, s.n_strips());
    for (int strip = first; strip < end; strip++) {
      const int column = strip * 16;
      const StripOutput out{.to = p.out + static_cast<size_t>(first_row) * s.n_out + column,
                            .stride = static_cast<size_t>(s.n_out),
                            .columns = std::min(16, s.n_out - column),
                            .bias = w.bias_.empty() ? nullptr : w.bias_.data() + column,
                            .accumulate = p.accumulate};
      multiply_strip(s, w.strips_.get() + static_cast<size_t>(strip) * s.strip_bytes(), rows, first_row, n,
                     out);
    }
  });
}

size_t CodedLinears::scratch_bytes(int n_rows, int max_width) {
  return CodedRows::bytes(n_rows, max_width, max_width / 16);
}

}  // namespace kv2::cpu
