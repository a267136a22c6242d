// SPDX-License-Identifier: Apache-2.0
// Packing weights into tiles and multiplying rows with them. Inputs are converted once into scratch (bf16 to
// nearest even, depth padded with zeros); a task is one weight tile and up to four row tiles; bias and
// accumulation are added when a product is stored. What oneDNN computes and how is tile_shape.cpp.
#include "cpu/linear.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/check.h"
#include "base/log.h"
#include "cpu/elementwise.h"
#include "cpu/tile_shape.h"

namespace kv2::cpu {
namespace {

// Widths of output tiles: wide ones waste less of a primitive's call, narrow ones balance small outputs over
// threads. A function of the output alone, since a tile's width may change the bits.
int tile_width(int n_out) {
  return n_out >= 1024 ? 128 : 64;
}
constexpr int kDepthMultiple = 32;  // inputs are padded with zeros to this: no remainder kernels
constexpr int kTilesPerTask = 4;    // row tiles that one task multiplies with the same weights

int round_up(int n, int multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Consecutive rows that one primitive call computes; `rows` may exceed those that exist, for the last one.
struct RowTile {
  int first;
  size_t count;  // index into row_counts()
  int rows;
};

/// Covers n_rows: largest tiles first, then the smallest that holds the rest unless a quarter of it or more
/// is padding.
std::vector<RowTile> cut_rows(int n_rows, const std::vector<int>& counts) {
  std::vector<RowTile> tiles;
  for (int at = 0; at < n_rows;) {
    const int left = n_rows - at;
    size_t pick = 0;
    for (size_t i = 1; i < counts.size(); i++)
      if (left >= counts[i] || left > counts[i] * 3 / 4) pick = i;
    tiles.push_back({at, pick, counts[pick]});
    at += counts[pick];
  }
  return tiles;
}

}  // namespace

LinearEngine::LinearEngine(ThreadTeam& team, LinearPrecision precision, HugePages huge_pages)
    : team_(team),
      huge_pages_(huge_pages),
      codes_(precision == LinearPrecision::Auto),
      coded_(team, huge_pages),
      memory_(huge_pages),
      dnn_(std::make_unique<OneDnn>(team.size())),
      rows_(huge_pages) {
  bf16_ = precision == LinearPrecision::Bf16 || (precision == LinearPrecision::Auto && has_fast_bf16(*dnn_));
  const std::string chosen = shape_for(64, 64).implementation();  // throws when there is none
  if (chosen.find("ref") != std::string::npos)
    log_warning(
        fmt::format("oneDNN multiplies {} matrices with its slow reference code ({}) on this processor",
                    bf16_ ? "bf16" : "f32", chosen));
}

LinearEngine::~LinearEngine() = default;

std::string LinearEngine::describe() const {
  const dnnl_version_t* v = dnnl_version();
  std::map<std::string, std::set<std::string>> kernels;  // implementation -> row counts in use
  for (const auto& [key, shape] : shapes_)
    kernels[shape->implementation()].insert(fmt::format("{}", fmt::join(shape->row_counts(), "/")));
  std::vector<std::string> names;
  for (const auto& [name, counts] : kernels)
    names.push_back(fmt::format("{} rows {}", name, fmt::join(counts, " or ")));
  return fmt::format("{}{} (oneDNN {}.{}.{}, {})",
                     codes_ ? "coded weights as the file has them, others " : "", bf16_ ? "bf16" : "f32",
                     v->major, v->minor, v->patch, fmt::join(names, "; "));
}

TileShape& LinearEngine::shape_for(int n_in, int n_out) {
  const int depth = round_up(n_in, kDepthMultiple), width = tile_width(n_out);
  auto& shape = shapes_[{depth, width}];
  if (!shape) {
    try {
      shape = std::make_unique<TileShape>(*dnn_, bf16_, depth, width, huge_pages_);
    } catch (const dnnl::error& e) {
      throw_error(ErrorCode::Unsupported, "oneDNN refuses a {} matmul of depth {} and width {}: {}",
                  bf16_ ? "bf16" : "f32", depth, width, e.what());
    }
  }
  return *shape;
}

std::unique_ptr<Linear> LinearEngine::pack(const LinearSource& source) {
  KV2_CHECK(source.n_in > 0 && source.n_out > 0 && source.fill, "a linear of {} by {}", source.n_in,
            source.n_out);
  if (codes_ && source.coded.bits != 0) return coded_.pack(source);
  KV2_CHECK(source.bias.empty() || source.bias.size() == static_cast<size_t>(source.n_out),
            "bias of {} for {} outputs", source.bias.size(), source.n_out);
  TileShape& shape = shape_for(source.n_in, source.n_out);
  const int width = shape.width(), depth = shape.depth(), n_tiles = (source.n_out + width - 1) / width;
  auto linear = std::make_unique<PackedLinear>();
  linear->n_in_ = source.n_in;
  linear->n_out_ = source.n_out;
  linear->shape_ = &shape;
  linear->tile_bytes_ = shape.tile_bytes();
  linear->weights_bytes_ = shape.tile_bytes() * static_cast<size_t>(n_tiles);
  linear->weights_ = memory_.take(linear->weights_bytes_);
  linear->bias_.assign(source.bias.begin(), source.bias.end());

  // Rows are filled by this thread (a source need not be thread-safe), a few tiles at a time, and packed by
  // the team.
  const size_t element = bf16_ ? sizeof(bf16) : sizeof(float),
               tile_elements = static_cast<size_t>(width) * depth;
  const int batch = std::clamp(static_cast<int>((size_t{16} << 20) / (tile_elements * 4)), 1,
                               std::max(1, 2 * team_.size()));
  std::vector<float> rows(static_cast<size_t>(batch) * width * source.n_in);
  WorkerScratch plain(team_.size(), huge_pages_);
  plain.grow(tile_elements * element);
  for (int first = 0; first < n_tiles; first += batch) {
    const int row0 = first * width, n = std::min(batch * width, source.n_out - row0);
    source.fill(row0, n, rows.data());
    team_.run(std::min(batch, n_tiles - first), [&](int64_t i, int worker) {
      auto* to = plain.of<std::byte>(worker);
      std::memset(to, 0, tile_elements * element);  // padding of depth and of the last tile
      for (int r = 0; r < std::min(width, n - static_cast<int>(i) * width); r++) {
        const float* from = rows.data() + (static_cast<size_t>(i) * width + r) * source.n_in;
        std::byte* row = to + static_cast<size_t>(r) * depth * element;
        if (bf16_)
          to_bf16_row(from, static_cast<size_t>(source.n_in), reinterpret_cast<bf16*>(row));
        else
          std::memcpy(row, from, static_cast<size_t>(source.n_in) * sizeof(float));
      }
      shape.pack(worker, to, linear->weights_.get() + (first + static_cast<size_t>(i)) * shape.tile_bytes());
    });
  }
  return linear;
}

void LinearEngine::prepare_rows(const LinearParams& p, int n_in, int padded_in, int padded_rows) {
  const size_t element = bf16_ ? sizeof(bf16) : sizeof(float),
               row_bytes = static_cast<size_t>(padded_in) * element;
  rows_.grow(row_bytes * static_cast<size_t>(padded_rows));
  const auto prepare = [&](int r) {
    std::byte* row = rows_.as<std::byte>() + static_cast<size_t>(r) * row_bytes;
    const size_t n = r < p.n_rows ? static_cast<size_t>(n_in) : 0;
    const float* from = p.in + static_cast<size_t>(r < p.n_rows ? r : 0) * n_in;
    if (bf16_)
      to_bf16_row(from, n, reinterpret_cast<bf16*>(row));
    else
      std::memcpy(row, from, n * sizeof(float));
    std::memset(row + n * element, 0, row_bytes - n * element);
  };
  constexpr int kRowsPerTask = 16;
  if (padded_rows <= kRowsPerTask) {
    for (int r = 0; r < padded_rows; r++) prepare(r);
    return;
  }
  team_.run((padded_rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t i, int) {
    const int first = static_cast<int>(i) * kRowsPerTask;
    for (int r = first; r < std::min(padded_rows, first + kRowsPerTask); r++) prepare(r);
  });
}

void LinearEngine::multiply(const Linear& weights, const LinearParams& p) {
  if (p.n_rows <= 0) return;
  if (const auto* coded = dynamic_cast<const CodedLinear*>(&weights))
    return coded_.multiply(*coded, p, rows_);
  const auto* w = dynamic_cast<const PackedLinear*>(&weights);
  KV2_CHECK(w, "these weights were not packed by the CPU backend's make_linear");
  TileShape& shape = *w->shape_;
  const int width = shape.width(), n_out = w->n_out_, n_tiles = (n_out + width - 1) / width;
  const std::vector<RowTile> tiles = cut_rows(p.n_rows, shape.row_counts());
  prepare_rows(p, w->n_in_, shape.depth(), tiles.back().first + tiles.back().rows);

  const size_t row_bytes = static_cast<size_t>(shape.depth()) * (bf16_ ? sizeof(bf16) : sizeof(float));
  const int64_t groups = (static_cast<int64_t>(tiles.size()) + kTilesPerTask - 1) / kTilesPerTask;
  team_.run(n_tiles * groups, [&](int64_t task, int worker) {
    const int tile = static_cast<int>(task / groups), first = static_cast<int>(task % groups) * kTilesPerTask;
    const std::byte* packed = w->weights_.get() + static_cast<size_t>(tile) * w->tile_bytes_;
    const int column = tile * width, columns = std::min(width, n_out - column);
    alignas(64) float product[64 * 128];
    for (int t = first; t < std::min(first + kTilesPerTask, static_cast<int>(tiles.size())); t++) {
      const RowTile& rows = tiles[static_cast<size_t>(t)];
      shape.multiply(worker, rows.count, rows_.as<std::byte>() + rows.first * row_bytes, packed, product);
      for (int r = 0; r < std::min(rows.rows, p.n_rows - rows.first); r++)
        store_row(product + static_cast<size_t>(r) * width,
                  w->bias_.empty() ? nullptr : w->bias_.data() + column, p.accumulate, columns,
                  p.out + static_cast<size_t>(rows.first + r) * n_out + column);
    }
  });
}

size_t LinearEngine::scratch_bytes(int n_rows, int max_width) const {
  const size_t plain = static_cast<size_t>(round_up(n_rows, 64)) *
                       static_cast<size_t>(round_up(max_width, kDepthMultiple)) * (bf16_ ? 2 : 4);
  return std::max(plain, codes_ ? CodedLinears::scratch_bytes(n_rows, max_width) : 0);  // they share rows_
}

const std::vector<int>& LinearEngine::row_tiles(const Linear& weights) const {
  return dynamic_cast<const PackedLinear&>(weights).shape_->row_counts();
}

}  // namespace kv2::cpu
