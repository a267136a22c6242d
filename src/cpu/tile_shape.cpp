// SPDX-License-Identifier: Apache-2.0
// oneDNN's primitives for one tile shape, and the comparison of bits that decides which row counts may be
// mixed.
#include "cpu/tile_shape.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/check.h"
#include "base/float16.h"

namespace kv2::cpu {
namespace {

constexpr int kRowCounts[] = {64, 16, 4,
                              1};  // tried in this order; the first that works fixes the packed layout

int (*openmp_max_threads())() {
  static const auto f = reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  return f;
}
void (*openmp_set_threads())(int) {
  static const auto f = reinterpret_cast<void (*)(int)>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  return f;
}

using Tag = dnnl::memory::format_tag;
using Type = dnnl::memory::data_type;

Type input_type(bool bf16) {
  return bf16 ? Type::bf16 : Type::f32;
}

/// A matmul descriptor, or an empty one where oneDNN has none. weights: a packed layout, or nullptr to let it
/// choose.
dnnl::matmul::primitive_desc describe_matmul(const dnnl::engine& engine, bool bf16, int rows, int depth,
                                             int width, const dnnl::memory::desc* weights) {
  const dnnl::memory::desc in({rows, depth}, input_type(bf16), Tag::ab),
      out({rows, width}, Type::f32, Tag::ab);
  const dnnl::memory::desc any({depth, width}, input_type(bf16), Tag::any);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // else two threads would share one
  return dnnl::matmul::primitive_desc({in, weights ? *weights : any, out}, attributes, engine,
                                      /*allow_empty=*/true);
}

}  // namespace

OneOpenMpThread::OneOpenMpThread() {
  if (!openmp_max_threads() || !openmp_set_threads()) return;
  before_ = openmp_max_threads()();
  if (before_ != 1) openmp_set_threads()(1);
}
OneOpenMpThread::~OneOpenMpThread() {
  if (before_ > 1) openmp_set_threads()(before_);
}

OneDnn::OneDnn(int n_workers) : engine(dnnl::engine::kind::cpu, 0) {
  for (int i = 0; i < n_workers; i++) streams.emplace_back(engine);
}

bool has_fast_bf16(OneDnn& dnn) {
  const OneOpenMpThread guard;
  const auto found = describe_matmul(dnn.engine, true, 64, 64, 64, nullptr);
  return found && std::string(found.impl_info_str()).find("bf16") != std::string::npos;
}

TileShape::TileShape(OneDnn& dnn, bool bf16, int depth, int width, HugePages huge_pages)
    : dnn_(dnn),
      bf16_(bf16),
      depth_(depth),
      width_(width),
      scratchpads_(static_cast<int>(dnn.streams.size()), huge_pages) {
  const OneOpenMpThread guard;
  for (const int rows : kRowCounts) add_candidate(rows);
  if (candidates_.empty())
    throw_error(ErrorCode::Unsupported, "oneDNN has no {} matmul for this processor", bf16 ? "bf16" : "f32");
  const dnnl::memory::desc plain({depth, width}, input_type(bf16), dnnl::memory::dims{1, depth});
  reorder_ = dnnl::reorder(dnnl::reorder::primitive_desc(dnn_.engine, plain, dnn_.engine, packed_));
  keep_equal_candidates(huge_pages);
}

bool TileShape::add_candidate(int rows) {
  const bool first = candidates_.empty();
  const auto found = describe_matmul(dnn_.engine, bf16_, rows, depth_, width_, first ? nullptr : &packed_);
  if (!found) return false;
  if (first) {
    packed_ = found.weights_desc();
    tile_bytes_ = (packed_.get_size() + 63) / 64 * 64;
  }
  Candidate c{rows, found.impl_info_str(), dnnl::matmul(found), {}};
  scratchpads_.grow(found.scratchpad_desc().get_size());
  for (size_t worker = 0; worker < dnn_.streams.size(); worker++) {
    Call call{dnnl::memory(found.src_desc(), dnn_.engine, nullptr),
              dnnl::memory(packed_, dnn_.engine, nullptr),
              dnnl::memory(found.dst_desc(), dnn_.engine, nullptr),
              {}};
    call.arguments = {{DNNL_ARG_SRC, call.in},
                      {DNNL_ARG_WEIGHTS, call.weights},
                      {DNNL_ARG_DST, call.out},
                      {DNNL_ARG_SCRATCHPAD, dnnl::memory(found.scratchpad_desc(), dnn_.engine, nullptr)}};
    c.calls.push_back(std::move(call));
  }
  candidates_.push_back(std::move(c));
  return true;
}

void TileShape::pack(int worker, const void* plain, void* packed) {
  const OneOpenMpThread guard;
  const dnnl::stream& stream = dnn_.streams[static_cast<size_t>(worker)];
  dnnl::memory from({{depth_, width_}, input_type(bf16_), dnnl::memory::dims{1, depth_}}, dnn_.engine,
                    const_cast<void*>(plain));
  dnnl::memory to(packed_, dnn_.engine, packed);
  reorder_.execute(const_cast<dnnl::stream&>(stream), from, to);
}

void TileShape::multiply(int worker, size_t count, const void* in, const void* packed, float* out) {
  const OneOpenMpThread guard;
  Candidate& c = candidates_[count];
  Call& call = c.calls[static_cast<size_t>(worker)];
  call.in.set_data_handle(const_cast<void*>(in));
  call.weights.set_data_handle(const_cast<void*>(packed));
  call.out.set_data_handle(out);
  call.arguments.at(DNNL_ARG_SCRATCHPAD).set_data_handle(scratchpads_.of<void>(worker));
  c.primitive.execute(dnn_.streams[static_cast<size_t>(worker)], call.arguments);
}

/// Rows [first, first + n) of `in`, tile by tile (n a multiple of c.rows).
std::vector<float> TileShape::run_rows(Candidate& c, const void* in, const void* packed, int first, int n) {
  std::vector<float> out(static_cast<size_t>(n) * width_);
  const size_t row_bytes = static_cast<size_t>(depth_) * (bf16_ ? 2 : 4);
  for (int r = 0; r < n; r += c.rows)
    multiply(0, static_cast<size_t>(&c - candidates_.data()),
             static_cast<const std::byte*>(in) + (first + r) * row_bytes, packed,
             out.data() + static_cast<size_t>(r) * width_);
  return out;
}

// The largest row count whose rows do not depend on their place in the tile is the yardstick; smaller ones
// stay when they give the same bits for every row. Random numbers with a mean, so that sums round in every
// step.
void TileShape::keep_equal_candidates(HugePages huge_pages) {
  constexpr int kRows = 128;
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.3f, 1.f);
  const auto fill = [&](int rows) {
    const size_t n = static_cast<size_t>(rows) * depth_;
    AlignedBuffer buffer(n * 4, huge_pages);
    for (size_t i = 0; i < n; i++)
      bf16_ ? void(buffer.as<bf16>()[i] = to_bf16(normal(generator)))
            : void(buffer.as<float>()[i] = normal(generator));
    return buffer;
  };
  const AlignedBuffer plain = fill(width_), in = fill(kRows);
  AlignedBuffer packed(tile_bytes_, huge_pages);
  pack(0, plain.as<void>(), packed.as<void>());

  std::vector<Candidate> kept;
  std::vector<float> yardstick;
  for (Candidate& c : candidates_) {
    const std::vector<float> all = run_rows(c, in.as<void>(), packed.as<void>(), 0, kRows);
    bool same = yardstick.empty() || std::memcmp(yardstick.data(), all.data(), all.size() * 4) == 0;
    for (const int shift : {1, 2, 5, c.rows / 2 + 1}) {
      if (c.rows == 1 || !same) break;
      const std::vector<float> moved = run_rows(c, in.as<void>(), packed.as<void>(), shift, kRows - 64);
      same =
          std::memcmp(moved.data(), all.data() + static_cast<size_t>(shift) * width_, moved.size() * 4) == 0;
    }
    if (!same) continue;
    if (yardstick.empty()) yardstick = all;
    kept.push_back(std::move(c));
  }
  KV2_CHECK(!kept.empty(), "no row count of oneDNN's matmul gives rows that are independent of their place");
  std::reverse(kept.begin(), kept.end());
  candidates_ = std::move(kept);
  for (const Candidate& c : candidates_) row_counts_.push_back(c.rows);
  implementation_ = candidates_.back().implementation;
}

}  // namespace kv2::cpu
