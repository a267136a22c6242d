// SPDX-License-Identifier: Apache-2.0
// The bytes of a PageWorld come from to_bf16 and int2::encode_rows_reference, not from any backend.
#include "ops/cases/page_world.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "ops/device_extras.h"
#include "quant/int2/int2.h"
#include "quant/page_codec.h"

namespace kv2::cases {
namespace {

constexpr std::byte kPoison{0xff};  // NaN as bf16, fp16 and float; code 3

/// Keys differ from token to token and have channels that stand out, as real ones do.
std::vector<float> random_rows(Random& random, int64_t n_tokens, const KvShape& shape, float mean) {
  std::vector<float> x(n_tokens * shape.n_kv_heads * shape.head_dim);
  for (size_t i = 0; i < x.size(); i++) {
    const int channel = static_cast<int>(i % shape.head_dim);
    x[i] = random.normal(channel % 3 == 0 ? mean : -0.5f * mean, channel == 5 ? 3.0f : 1.0f);
  }
  return x;
}

}  // namespace

std::vector<FormatCase> other_formats(int head_dim) {
  const auto affine = [](int bits, int group, OffsetKind offset) {
    return SideFormat{.codec = CodecId::Affine, .bits = bits, .group = group, .offset = offset};
  };
  const auto channel = [](int group, TokenNorm norm, int kept, int wide) {
    return SideFormat{
        .codec = CodecId::Channel, .bits = 2, .group = group, .norm = norm, .kept = kept, .wide = wide};
  };
  const SideFormat bf16{.codec = CodecId::Bf16};
  return {{"K 3 bits, V 2 bits", affine(3, 0, OffsetKind::Stored), affine(2, 0, OffsetKind::Stored)},
          {"K 2 bits, V 1 bit, no offset", affine(2, head_dim / 2, OffsetKind::Centred),
           affine(1, 32, OffsetKind::Centred)},
          {"8 and symmetric 4 bits", affine(8, 0, OffsetKind::Stored), affine(4, 32, OffsetKind::Symmetric)},
          {"K bf16, V 2 bits", bf16, affine(2, 0, OffsetKind::Stored)},
          {"bf16", bf16, bf16},
          {"kivi", channel(32, TokenNorm::Off, 0, 0), affine(2, 32, OffsetKind::Stored)},
          {"omni", channel(64, TokenNorm::AllHeads, 0, 0), affine(2, 32, OffsetKind::Stored)},
          {"omni2", channel(32, TokenNorm::AllHeads, 0, 0), affine(2, 32, OffsetKind::Stored)},
          {"ott and kitty", channel(32, TokenNorm::Off, 3, 0), channel(64, TokenNorm::Off, 0, 8)},
          {"turboquant", {.codec = CodecId::Gauss, .bits = 3}, {.codec = CodecId::Qjl, .bits = 2}}};
}

PageWorld::PageWorld(WorldSpec spec) : spec_(std::move(spec)) {
  Random random(spec_.seed);
  int n_pages = 0;
  for (const int64_t n : spec_.n_tokens) n_pages += static_cast<int>((n + kPageTokens - 1) / kPageTokens);
  n_slots_ = n_pages + 3;
  const std::vector<int32_t> full = random.permutation(n_slots_), packed = random.permutation(n_slots_);
  int next = 0;
  for (const int64_t n : spec_.n_tokens) {
    keys_.push_back(random_rows(random, n, spec_.shape, spec_.key_mean));
    values_.push_back(random_rows(random, n, spec_.shape, 0.4f));
    const int pages = static_cast<int>((n + kPageTokens - 1) / kPageTokens);
    full_slots_.emplace_back(full.begin() + next, full.begin() + next + pages);
    packed_slots_.emplace_back(packed.begin() + next, packed.begin() + next + pages);
    next += pages;
  }
}

std::vector<float> PageWorld::gather(const std::vector<std::vector<float>>& from,
                                     std::span<const Segment> segments) const {
  const size_t width = static_cast<size_t>(spec_.shape.n_kv_heads) * spec_.shape.head_dim;
  std::vector<float> rows;
  for (const Segment& s : segments) {
    const auto begin = from[s.sequence].begin() + static_cast<std::ptrdiff_t>(s.first_pos * width);
    rows.insert(rows.end(), begin, begin + static_cast<std::ptrdiff_t>(s.n_rows * width));
  }
  return rows;
}

std::vector<std::byte> PageWorld::canonical_full(int sequence, int page, int kv_head) const {
  const int d = spec_.shape.head_dim;
  const float stale = spec_.stale_nan ? std::numeric_limits<float>::quiet_NaN() : 1e30f;
  std::vector<bf16> rows(2 * kPageTokens * d, to_bf16(stale));
  for (int t = 0; t < kPageTokens; t++) {
    const int64_t pos = static_cast<int64_t>(page) * kPageTokens + t;
    if (pos >= spec_.n_tokens[sequence]) break;
    const size_t from = (pos * spec_.shape.n_kv_heads + kv_head) * d;
    for (int c = 0; c < d; c++) {
      rows[t * d + c] = to_bf16(keys_[sequence][from + c]);
      rows[(kPageTokens + t) * d + c] = to_bf16(values_[sequence][from + c]);
    }
  }
  std::vector<std::byte> bytes(rows.size() * sizeof(bf16));
  std::memcpy(bytes.data(), rows.data(), bytes.size());
  return bytes;
}

const std::vector<std::byte>& PageWorld::canonical_packed(int sequence, int page, int kv_head) const {
  std::vector<std::byte>& bytes = packed_bytes_[{sequence, page, kv_head}];
  if (!bytes.empty()) return bytes;
  const LayerLayout part = spec_.layout().layer(spec_.layer);
  if (!part.int2_heads()) return bytes = encoded_part(part, sequence, page);
  const int d = spec_.shape.head_dim;
  const std::vector<std::byte> full = canonical_full(sequence, page, kv_head);
  const auto* k = reinterpret_cast<const bf16*>(full.data());
  const Int2Layout layout{d, spec_.group};
  bytes.resize(layout.bytes());
  const auto codes = [&](size_t at) { return reinterpret_cast<uint8_t*>(bytes.data() + at); };
  const auto params = [&](size_t at) { return reinterpret_cast<fp16*>(bytes.data() + at); };
  int2::encode_rows_reference(k, d, d, spec_.coder_k(), codes(layout.k_codes()), params(layout.k_params()));
  int2::encode_rows_reference(k + kPageTokens * d, d, d, spec_.coder_v(), codes(layout.v_codes()),
                              params(layout.v_params()));
  return bytes;
}

/// Through the codecs, whose bytes their own tests compare with independent models.
std::vector<std::byte> PageWorld::encoded_part(const LayerLayout& part, int sequence, int page) const {
  const size_t head = static_cast<size_t>(kPageTokens) * spec_.shape.head_dim;
  std::vector<bf16> rows(2 * head * spec_.shape.n_kv_heads);
  for (int h = 0; h < spec_.shape.n_kv_heads; h++) {
    const std::vector<std::byte> full = canonical_full(sequence, page, h);
    std::memcpy(rows.data() + 2 * h * head, full.data(), full.size());
  }
  std::vector<std::byte> out(part.bytes());
  page_codec(part.k.codec)
      .encode({part.k, spec_.shape}, {rows.data(), 2 * head}, spec_.coder_k(), out.data());
  page_codec(part.v.codec)
      .encode({part.v, spec_.shape}, {rows.data() + head, 2 * head}, spec_.coder_v(),
              out.data() + part.k_bytes);
  return out;
}

Views PageWorld::views(std::span<const Segment> segments) const {
  Views out;
  int row = 0;
  for (const Segment& s : segments) {
    const int last_page = static_cast<int>((s.first_pos + std::max(s.n_rows, 1) - 1) / kPageTokens);
    std::vector<int32_t> full(last_page + 1, -1), packed(last_page + 1, -1);
    for (int64_t pos = s.first_pos; pos < s.first_pos + s.n_rows; pos++) {
      for (int64_t page = 0; page <= pos / kPageTokens; page++) {
        const bool in_sink = page < spec_.rule.sink_pages;
        const bool in_recent = page + spec_.rule.recent_pages >= pos / kPageTokens;
        const bool is_full = in_sink || in_recent || pos < s.full_until || !spec_.rule.quantized;
        (is_full ? full : packed)[page] = (is_full ? full_slots_ : packed_slots_)[s.sequence][page];
      }
    }
    out.tables.push_back(std::move(full));
    out.tables.push_back(std::move(packed));
    out.views.push_back({row, s.n_rows, s.first_pos, s.full_until, nullptr, nullptr});
    row += s.n_rows;
  }
  for (size_t i = 0; i < out.views.size(); i++) {
    out.views[i].full_pages = out.tables[2 * i].data();
    out.views[i].packed_pages = out.tables[2 * i + 1].data();
  }
  return out;
}

Views PageWorld::append_views(std::span<const Segment> segments) const {
  Views out = views(segments);
  for (size_t i = 0; i < segments.size(); i++) {
    const int first = static_cast<int>(segments[i].first_pos / kPageTokens);
    std::vector<int32_t>& full = out.tables[2 * i];
    for (int page = 0; page < static_cast<int>(full.size()); page++)
      full[page] = page < first ? -1 : full_slots_[segments[i].sequence][page];
    std::fill(out.tables[2 * i + 1].begin(), out.tables[2 * i + 1].end(), -1);
  }
  return out;
}

DevicePages::DevicePages(Backend& backend, std::shared_ptr<const PageWorld> world)
    : backend_(&backend),
      world_(std::move(world)),
      layout_(world_->spec().layout()),
      full_(backend, std::vector<std::byte>(world_->n_slots() * layout_.full_page_bytes(), kPoison)),
      packed_(backend, std::vector<std::byte>(
                           world_->n_slots() * std::max<size_t>(layout_.packed_page_bytes(), 1), kPoison)) {}

std::byte* DevicePages::full_head(int sequence, int page, int kv_head) const {
  return full_.data() + world_->full_slot(sequence, page) * layout_.full_page_bytes() +
         layout_.full_offset(world_->spec().layer, kv_head);
}

std::byte* DevicePages::packed_page(int sequence, int page) const {
  return packed_.data() + world_->packed_slot(sequence, page) * layout_.packed_page_bytes();
}

int DevicePages::n_parts() const {
  return layout_.layer(world_->spec().layer).int2_heads() ? layout_.shape.n_kv_heads : 1;
}

void DevicePages::fill_full() const {
  for (size_t s = 0; s < world_->spec().n_tokens.size(); s++)
    for (int page = 0; page < world_->n_pages(s); page++)
      for (int h = 0; h < layout_.shape.n_kv_heads; h++)
        backend_->import_full(full_head(s, page, h), layout_.shape.head_dim,
                              world_->canonical_full(s, page, h));
}

void DevicePages::blank_full() const {
  const std::vector<std::byte> blank(layout_.full_head_bytes(), kPoison);
  for (size_t s = 0; s < world_->spec().n_tokens.size(); s++)
    for (int page = 0; page < world_->n_pages(s); page++)
      for (int h = 0; h < layout_.shape.n_kv_heads; h++)
        backend_->import_full(full_head(s, page, h), layout_.shape.head_dim, blank);
}

void DevicePages::fill_packed() const {
  if (!layout_.packs()) return;
  const int layer = world_->spec().layer;
  for (size_t s = 0; s < world_->spec().n_tokens.size(); s++)
    for (int page = 0; page < world_->spec().n_tokens[s] / kPageTokens; page++)
      for (int h = 0; h < n_parts(); h++) {
        const std::vector<std::byte>& bytes = world_->canonical_packed(s, page, h);
        if (layout_.layer(layer).int2_heads())
          backend_->import_packed(packed_page(s, page) + layout_.packed_offset(layer, h), layout_.int2(layer),
                                  bytes);
        else
          import_sides(*backend_, packed_page(s, page) + layout_.layer(layer).offset, layout_.layer(layer),
                       layout_.shape, bytes);
      }
}

KvView DevicePages::view() const {
  return {layout_, full_.data(), packed_.data(), world_->spec().rule};
}

void DevicePages::append_untouched(const DeviceArray<std::byte>& pool, size_t page_bytes, size_t own_offset,
                                   size_t own_bytes, const std::vector<std::vector<int32_t>>& own_slots,
                                   std::vector<std::byte>& out) const {
  const std::vector<std::byte> raw = pool.download();
  std::vector<bool> used(world_->n_slots());
  for (const auto& slots : own_slots)
    for (const int32_t slot : slots) used[slot] = true;
  for (int slot = 0; slot < world_->n_slots(); slot++) {
    const auto page = raw.begin() + slot * page_bytes;
    if (!used[slot]) {
      out.insert(out.end(), page, page + page_bytes);
    } else {
      out.insert(out.end(), page, page + own_offset);
      out.insert(out.end(), page + own_offset + own_bytes, page + page_bytes);
    }
  }
}

std::vector<std::byte> DevicePages::export_all_full() const {
  std::vector<std::byte> out, page_bytes(layout_.full_head_bytes());
  std::vector<std::vector<int32_t>> slots(world_->spec().n_tokens.size());
  backend_->sync();
  for (size_t s = 0; s < slots.size(); s++) {
    for (int page = 0; page < world_->n_pages(s); page++) {
      slots[s].push_back(world_->full_slot(s, page));
      for (int h = 0; h < layout_.shape.n_kv_heads; h++) {
        backend_->export_full(full_head(s, page, h), layout_.shape.head_dim, page_bytes);
        out.insert(out.end(), page_bytes.begin(), page_bytes.end());
      }
    }
  }
  append_untouched(full_, layout_.full_page_bytes(), layout_.full_offset(world_->spec().layer, 0),
                   layout_.shape.n_kv_heads * layout_.full_head_bytes(), slots, out);
  return out;
}

std::vector<std::byte> DevicePages::export_all_packed() const {
  const int layer = world_->spec().layer;
  const bool int2 = layout_.layer(layer).int2_heads();
  std::vector<std::byte> out,
      page_bytes(int2 ? layout_.packed_head_bytes(layer) : layout_.layer(layer).bytes());
  std::vector<std::vector<int32_t>> slots(world_->spec().n_tokens.size());
  backend_->sync();
  for (size_t s = 0; s < slots.size(); s++) {
    for (int page = 0; page < world_->spec().n_tokens[s] / kPageTokens; page++) {
      slots[s].push_back(world_->packed_slot(s, page));
      for (int h = 0; h < n_parts(); h++) {
        if (int2)
          backend_->export_packed(packed_page(s, page) + layout_.packed_offset(layer, h), layout_.int2(layer),
                                  page_bytes);
        else
          export_sides(*backend_, packed_page(s, page) + layout_.layer(layer).offset, layout_.layer(layer),
                       layout_.shape, page_bytes);
        out.insert(out.end(), page_bytes.begin(), page_bytes.end());
      }
    }
  }
  append_untouched(packed_, layout_.packed_page_bytes(), layout_.layer(layer).offset,
                   layout_.layer(layer).bytes(), slots, out);
  return out;
}

}  // namespace kv2::cases
