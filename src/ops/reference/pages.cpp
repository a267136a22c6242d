// SPDX-License-Identifier: Apache-2.0
// Reference of the ops on pages: append, demote, attend. Pages are in the canonical layout: a full head page
// is K [64][d] then V [64][d] in bf16, a packed head page of int2 is Int2Layout, any other packed part what
// its codecs write. attend is the rule of visibility, literally.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/check.h"
#include "base/float16.h"
#include "ops/reference/ops.h"
#include "quant/int2/encode_head.h"
#include "quant/page_codec.h"

namespace kv2::reference {
namespace {

bf16* full_head(const KvView& kv, int layer, int kv_head, int32_t slot) {
  KV2_CHECK(slot >= 0 && kv.full, "full page not held");
  return reinterpret_cast<bf16*>(kv.full + slot * kv.layout.full_page_bytes() +
                                 kv.layout.full_offset(layer, kv_head));
}

std::byte* packed_page(const KvView& kv, int32_t slot) {
  KV2_CHECK(slot >= 0 && kv.packed, "packed page not held");
  return kv.packed + slot * kv.layout.packed_page_bytes();
}

/// K and V of one head page as floats, [64, d] each.
struct HeadRows {
  std::vector<float> k, v;
};

HeadRows read_full(const bf16* page, int d) {
  const int n = kPageTokens * d;
  HeadRows rows{std::vector<float>(n), std::vector<float>(n)};
  for (int i = 0; i < n; i++) {
    rows.k[i] = to_float(page[i]);
    rows.v[i] = to_float(page[n + i]);
  }
  return rows;
}

HeadRows read_int2(const std::byte* page, const Int2Layout& layout) {
  const int n = kPageTokens * layout.head_dim;
  HeadRows rows{std::vector<float>(n), std::vector<float>(n)};
  const auto codes = [&](size_t at) { return reinterpret_cast<const uint8_t*>(page + at); };
  const auto params = [&](size_t at) { return reinterpret_cast<const fp16*>(page + at); };
  int2::decode_rows(codes(layout.k_codes()), params(layout.k_params()), layout.head_dim, layout.group,
                    rows.k.data());
  int2::decode_rows(codes(layout.v_codes()), params(layout.v_params()), layout.head_dim, layout.group,
                    rows.v.data());
  return rows;
}

HeadRows read_packed(const KvView& kv, int layer, int kv_head, int index, const std::byte* page) {
  const LayerLayout& part = kv.layout.layer(layer);
  if (part.int2_heads())
    return read_int2(page + kv.layout.packed_offset(layer, kv_head), kv.layout.int2(layer));
  const KvShape& shape = kv.layout.shape;
  const size_t n = static_cast<size_t>(kPageTokens) * shape.head_dim;
  HeadRows rows{std::vector<float>(n), std::vector<float>(n)};
  page_codec(part.k.codec)
      .decode(kv.layout.k_side(layer, index), page + part.k_offset(), kv_head, rows.k.data());
  page_codec(part.v.codec)
      .decode(kv.layout.v_side(layer, index), page + part.v_offset(), kv_head, rows.v.data());
  return rows;
}

/// The pages of one sequence and KV head, decoded on first use in the form asked for.
class PageReader {
 public:
  PageReader(const KvView& kv, int layer, int kv_head, const SequenceView& sequence)
      : kv_(kv), layer_(layer), kv_head_(kv_head), sequence_(sequence) {}

  const HeadRows& rows(int page, bool packed) {
    const auto [at, is_new] = read_.try_emplace({page, packed});
    if (is_new) at->second = packed ? read_packed_page(page) : read_full_page(page);
    return at->second;
  }

 private:
  HeadRows read_full_page(int page) const {
    KV2_CHECK(sequence_.full_pages, "no table of full pages");
    return read_full(full_head(kv_, layer_, kv_head_, sequence_.full_pages[page]), kv_.layout.shape.head_dim);
  }
  HeadRows read_packed_page(int page) const {
    KV2_CHECK(sequence_.packed_pages, "no table of packed pages");
    return read_packed(kv_, layer_, kv_head_, page, packed_page(kv_, sequence_.packed_pages[page]));
  }

  const KvView& kv_;
  int layer_, kv_head_;
  const SequenceView& sequence_;
  std::map<std::pair<int, bool>, HeadRows> read_;
};

/// One query head at one position: a softmax over the keys of positions 0..pos, each read in the form the
/// rule says.
void attend_one(const AttendParams& p, const SequenceView& sequence, PageReader& pages, int64_t pos,
                const float* q, float* out) {
  const int d = p.kv.layout.shape.head_dim;
  const int query_page = static_cast<int>(pos / kPageTokens);
  const auto page_of = [&](int64_t key) -> const HeadRows& {
    const int page = static_cast<int>(key / kPageTokens);
    return pages.rows(page, pos >= sequence.full_until && p.kv.rule.packed(query_page, page));
  };
  std::vector<double> weight(pos + 1);
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t key = 0; key <= pos; key++) {
    const float* k = page_of(key).k.data() + (key % kPageTokens) * d;
    double dot = 0;
    for (int i = 0; i < d; i++) dot += static_cast<double>(q[i]) * k[i];
    double logit = dot * p.softmax_scale;
    if (p.soft_cap > 0) logit = p.soft_cap * std::tanh(logit / p.soft_cap);
    weight[key] = logit;
    largest = std::max(largest, logit);
  }
  double sum = 0;
  for (double& w : weight) {
    w = std::exp(w - largest);
    sum += w;
  }
  std::vector<double> total(d, 0.0);
  for (int64_t key = 0; key <= pos; key++) {
    const float* v = page_of(key).v.data() + (key % kPageTokens) * d;
    for (int i = 0; i < d; i++) total[i] += weight[key] * v[i];
  }
  for (int i = 0; i < d; i++) out[i] = static_cast<float>(total[i] / sum);
}

}  // namespace

void append(const AppendParams& p) {
  const KvShape& shape = p.kv.layout.shape;
  const int d = shape.head_dim;
  for (const SequenceView& sequence : p.sequences) {
    for (int i = 0; i < sequence.n_rows; i++) {
      const int64_t pos = sequence.first_pos + i;
      const size_t row = static_cast<size_t>(sequence.first_row) + i, in_page = pos % kPageTokens;
      for (int h = 0; h < shape.n_kv_heads; h++) {
        bf16* page = full_head(p.kv, p.layer, h, sequence.full_pages[pos / kPageTokens]);
        const size_t from = (row * shape.n_kv_heads + h) * d;
        for (int c = 0; c < d; c++) {
          page[in_page * d + c] = to_bf16(p.k[from + c]);
          page[(kPageTokens + in_page) * d + c] = to_bf16(p.v[from + c]);
        }
      }
    }
  }
}

namespace {

void demote_int2(const DemoteParams& p, const Demotion& page) {
  const KvShape& shape = p.kv.layout.shape;
  const Int2Layout layout = p.kv.layout.int2(p.layer);
  for (int h = 0; h < shape.n_kv_heads; h++) {
    const bf16* k = full_head(p.kv, p.layer, h, page.full_page);
    const bf16* v = k + kPageTokens * shape.head_dim;
    std::byte* packed = packed_page(p.kv, page.packed_page) + p.kv.layout.packed_offset(p.layer, h);
    const auto codes = [&](size_t at) { return reinterpret_cast<uint8_t*>(packed + at); };
    const auto params = [&](size_t at) { return reinterpret_cast<fp16*>(packed + at); };
    int2::encode_head_reference(k, shape.head_dim, shape.head_dim, p.k, h, codes(layout.k_codes()),
                                params(layout.k_params()));
    int2::encode_head_reference(v, shape.head_dim, shape.head_dim, p.v, h, codes(layout.v_codes()),
                                params(layout.v_params()));
  }
}

void demote_sides(const DemoteParams& p, const Demotion& page) {
  const KvShape& shape = p.kv.layout.shape;
  const LayerLayout& part = p.kv.layout.layer(p.layer);
  const size_t head = static_cast<size_t>(kPageTokens) * shape.head_dim;
  const bf16* rows = full_head(p.kv, p.layer, 0, page.full_page);
  std::byte* packed = packed_page(p.kv, page.packed_page);
  const Side k = p.kv.layout.k_side(p.layer, page.page), v = p.kv.layout.v_side(p.layer, page.page);
  page_codec(part.k.codec).encode(k, {rows, 2 * head}, p.k, packed + part.k_offset());
  page_codec(part.v.codec).encode(v, {rows + head, 2 * head}, p.v, packed + part.v_offset());
}

}  // namespace

void demote(const DemoteParams& p) {
  KV2_CHECK(p.kv.layout.packs(), "demote needs a codec");
  const LayerLayout& part = p.kv.layout.layer(p.layer);
  KV2_CHECK(p.k.group == part.k.group && p.v.group == part.v.group, "coder and layout differ in group");
  for (const Demotion& page : p.pages) part.int2_heads() ? demote_int2(p, page) : demote_sides(p, page);
}

void attend(const AttendParams& p) {
  const KvShape& shape = p.kv.layout.shape;
  for (const SequenceView& sequence : p.sequences) {
    for (int kv_head = 0; kv_head < shape.n_kv_heads; kv_head++) {
      PageReader pages(p.kv, p.layer, kv_head, sequence);
      for (int i = 0; i < sequence.n_rows; i++) {
        for (int g = 0; g < shape.q_per_kv(); g++) {
          const size_t row = static_cast<size_t>(sequence.first_row) + i;
          const size_t at = (row * shape.n_heads + kv_head * shape.q_per_kv() + g) * shape.head_dim;
          attend_one(p, sequence, pages, sequence.first_pos + i, p.q + at, p.out + at);
        }
      }
    }
  }
}

}  // namespace kv2::reference
