// SPDX-License-Identifier: Apache-2.0
#include "cpu/head_ops.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/float16.h"
#include "cpu/elementwise.h"
#include "cpu/head_page.h"
#include "quant/int2/encode_head.h"
#include "quant/page_codec.h"

namespace kv2::cpu {

// transform: a matrix and 12 rows; demote: 64 rows of keys and a canonical packed page (no larger than they).
size_t head_op_scratch(int head_dim) {
  const size_t d = static_cast<size_t>(head_dim);
  return std::max(sizeof(float) * (d * d + 12 * d), sizeof(bf16) * 2 * kPageTokens * d);
}

size_t codec_scratch(const KvShape& shape) {
  return sizeof(bf16) * kPageTokens * static_cast<size_t>(shape.head_dim) * shape.n_kv_heads;
}

void transform(ThreadTeam& team, WorkerScratch& scratch, const TransformParams& p) {
  const int d = p.head_dim, q_per_kv = p.n_heads / p.n_kv_heads;
  if (d % 16 != 0)
    throw_error(ErrorCode::Unsupported, "head_dim {} on the CPU: transforms need a multiple of 16", d);
  scratch.grow(head_op_scratch(d));
  // A task is one KV head and a run of rows; 6 vectors at a time go through the matrix. Few rows are halved:
  // three tasks of three KV heads leave two workers as long as four would.
  const int rows_per_task = std::clamp((p.n_rows + 1) / 2, 1, std::max(1, 96 / q_per_kv)),
            chunks = (p.n_rows + rows_per_task - 1) / rows_per_task;
  const int64_t n_tasks = static_cast<int64_t>(chunks) * p.n_kv_heads;
  const auto work = [&](int64_t task, int worker) {
    const int kv_head = static_cast<int>(task % p.n_kv_heads),
              row0 = static_cast<int>(task / p.n_kv_heads) * rows_per_task;
    const int n = std::min(rows_per_task, p.n_rows - row0) * q_per_kv;
    const size_t dd = static_cast<size_t>(d);
    const float* matrix = p.matrix + static_cast<size_t>(kv_head) * dd * dd;
    float* transposed = scratch.of<float>(worker);
    if (p.transpose) {
      transpose_matrix(matrix, d, transposed);
      matrix = transposed;
    }
    const float* mean = p.mean ? p.mean + static_cast<size_t>(kv_head) * dd : nullptr;
    const float* add = p.add ? p.add + static_cast<size_t>(kv_head) * dd : nullptr;
    for (int i = 0; i < n; i += 6) {
      const float* in[6];
      float* out[6];
      const int block = std::min(6, n - i);
      for (int j = 0; j < block; j++) {
        const size_t row = static_cast<size_t>(row0 + (i + j) / q_per_kv);
        const size_t at =
            (row * p.n_heads + static_cast<size_t>(kv_head * q_per_kv + (i + j) % q_per_kv)) * dd;
        in[j] = p.in + at;
        out[j] = p.out + at;
      }
      multiply_heads(in, out, block, d, matrix, mean, add, transposed + dd * dd);
    }
  };
  // A decode step's few rows take some microseconds: handing them out costs as much.
  constexpr int64_t kSerialProducts = 1 << 18;
  if (int64_t{p.n_rows} * p.n_heads * d * d <= kSerialProducts)
    for (int64_t i = 0; i < n_tasks; i++) work(i, 0);
  else
    team.run(n_tasks, work);
}

void append(ThreadTeam& team, const AppendParams& p) {
  struct Piece {  // rows of one sequence that fall into one page
    int32_t slot;
    int token, n, row;
  };
  const KvShape& shape = p.kv.layout.shape;
  std::vector<Piece> pieces;
  for (const SequenceView& s : p.sequences) {
    for (int at = 0; at < s.n_rows;) {
      const int64_t pos = s.first_pos + at;
      const int token = static_cast<int>(pos % kPageTokens), n = std::min(s.n_rows - at, kPageTokens - token);
      const int32_t slot = s.full_pages ? s.full_pages[pos / kPageTokens] : -1;
      KV2_CHECK(slot >= 0 && p.kv.full, "full page {} not held", pos / kPageTokens);
      pieces.push_back({slot, token, n, s.first_row + at});
      at += n;
    }
  }
  const auto write = [&](int64_t i, int) {
    const Piece& piece = pieces[static_cast<size_t>(i / shape.n_kv_heads)];
    const int head = static_cast<int>(i % shape.n_kv_heads), d = shape.head_dim;
    const size_t stride = static_cast<size_t>(shape.n_kv_heads) * d,
                 from = static_cast<size_t>(piece.row) * stride + static_cast<size_t>(head) * d;
    std::byte* page = p.kv.full + static_cast<size_t>(piece.slot) * p.kv.layout.full_page_bytes() +
                      p.kv.layout.full_offset(p.layer, head);
    write_rows(page, d, piece.token, piece.n, p.k + from, p.v + from, stride);
  };
  const int64_t n = static_cast<int64_t>(pieces.size()) * shape.n_kv_heads;
  if (pieces.size() == 1 && pieces[0].n == 1)  // one token: waking the team costs more
    for (int64_t i = 0; i < n; i++) write(i, 0);
  else
    team.run(n, write);
}

namespace {

/// K and V of all heads of one page through their codecs: K's rows, transposed back, in scratch.
void demote_sides(const DemoteParams& p, const Demotion& page, bf16* scratch) {
  const KvShape& shape = p.kv.layout.shape;
  const LayerLayout& part = p.kv.layout.layer(p.layer);
  const size_t head = static_cast<size_t>(kPageTokens) * shape.head_dim;
  const std::byte* full = p.kv.full + static_cast<size_t>(page.full_page) * p.kv.layout.full_page_bytes() +
                          p.kv.layout.full_offset(p.layer, 0);
  std::byte* packed = p.kv.packed + static_cast<size_t>(page.packed_page) * p.kv.layout.packed_page_bytes();
  for (int h = 0; h < shape.n_kv_heads; h++)
    transpose_keys(full + h * p.kv.layout.full_head_bytes(), shape.head_dim, scratch + h * head);
  page_codec(part.k.codec)
      .encode(p.kv.layout.k_side(p.layer, page.page), {scratch, head}, p.k, packed + part.k_offset());
  const bf16* values = reinterpret_cast<const bf16*>(full) + head;
  page_codec(part.v.codec)
      .encode(p.kv.layout.v_side(p.layer, page.page), {values, 2 * head}, p.v, packed + part.v_offset());
}

void demote_int2(const DemoteParams& p, const Demotion& page, int head, bf16* keys) {
  const int d = p.kv.layout.shape.head_dim;
  const Int2Layout layout = p.kv.layout.int2(p.layer);
  const std::byte* full = p.kv.full + static_cast<size_t>(page.full_page) * p.kv.layout.full_page_bytes() +
                          p.kv.layout.full_offset(p.layer, head);
  std::byte* packed = p.kv.packed + static_cast<size_t>(page.packed_page) * p.kv.layout.packed_page_bytes() +
                      p.kv.layout.packed_offset(p.layer, head);
  auto* canonical = reinterpret_cast<std::byte*>(keys + static_cast<size_t>(kPageTokens) * d);
  const auto codes = [&](size_t at) { return reinterpret_cast<uint8_t*>(canonical + at); };
  const auto params = [&](size_t at) { return reinterpret_cast<fp16*>(canonical + at); };
  transpose_keys(full, d, keys);
  const auto* values = reinterpret_cast<const bf16*>(full) + static_cast<size_t>(kPageTokens) * d;
  int2::encode_head(keys, static_cast<size_t>(d), d, p.k, head, codes(layout.k_codes()),
                    params(layout.k_params()));
  int2::encode_head(values, static_cast<size_t>(d), d, p.v, head, codes(layout.v_codes()),
                    params(layout.v_params()));
  import_packed(packed, layout, canonical);
}

}  // namespace

void demote(ThreadTeam& team, WorkerScratch& scratch, const DemoteParams& p) {
  const KvShape& shape = p.kv.layout.shape;
  KV2_CHECK(p.kv.layout.packs(), "demote needs a codec");
  const LayerLayout& part = p.kv.layout.layer(p.layer);
  KV2_CHECK(p.k.group == part.k.group && p.v.group == part.v.group, "coder and layout differ in group");
  const bool by_head = part.int2_heads();  // other codecs take all heads of a page at once
  scratch.grow(by_head ? head_op_scratch(shape.head_dim) : codec_scratch(shape));
  const int n_parts = by_head ? shape.n_kv_heads : 1;
  team.run(static_cast<int64_t>(p.pages.size()) * n_parts, [&](int64_t i, int worker) {
    const Demotion& page = p.pages[static_cast<size_t>(i / n_parts)];
    KV2_CHECK(page.full_page >= 0 && page.packed_page >= 0, "a page to demote is not held");
    bf16* memory = scratch.of<bf16>(worker);
    by_head ? demote_int2(p, page, static_cast<int>(i % n_parts), memory) : demote_sides(p, page, memory);
  });
}

}  // namespace kv2::cpu
