// SPDX-License-Identifier: Apache-2.0
#include "apps/bench_pages.h"

#include <algorithm>

#include "base/check.h"
#include "base/memory.h"
#include "ops/device_extras.h"
#include "ops/reference/reference.h"

namespace kv2::app {
namespace {

using cases::DeviceArray;

std::shared_ptr<const cases::PageWorld> make_world(KvShape shape, const PageLayout& layout,
                                                   const Visibility& rule, int64_t n_tokens) {
  const LayerLayout part = layout.packs() ? layout.layer(0) : LayerLayout{};  // of all layers alike
  const bool int2 = part.int2_heads();
  shape.n_layers = 1;
  return std::make_shared<const cases::PageWorld>(cases::WorldSpec{.shape = shape,
                                                                   .group = int2 ? part.k.group : 0,
                                                                   .rule = rule,
                                                                   .n_tokens = {n_tokens},
                                                                   .k = int2 ? SideFormat{} : part.k,
                                                                   .v = int2 ? SideFormat{} : part.v});
}

}  // namespace

BenchPages::BenchPages(Backend& backend, const KvShape& shape, const CacheSpec& spec, const BatchSize& size)
    : backend_(backend), size_(size), layout_(PageLayout::of(spec, shape)) {
  KV2_CHECK(size.n_rows >= 1 && size.n_rows <= size.n_tokens && size.n_sequences >= 1);
  backend.require_formats(layout_);
  rule_ = {spec.sink_pages(), spec.recent_pages(), layout_.packs()};
  const int64_t in_last = size.n_tokens - int64_t{n_pages() - 1} * kPageTokens;
  world_ = make_world(shape, layout_, rule_, int64_t{n_made() - 1} * kPageTokens + in_last);
  require_room();
  choose_slots();
  full_.emplace(backend, std::max<size_t>(64, n_full_ * layout_.full_page_bytes()));
  packed_.emplace(backend, std::max<size_t>(64, n_packed_ * layout_.packed_page_bytes()));
  fill_full();
  fill_packed();
  full_table_.emplace(backend, std::span<const int32_t>(full_slots_));
  packed_table_.emplace(backend, std::span<const int32_t>(packed_slots_));
  for (int s = 0; s < size.n_sequences; s++)
    views_.push_back({.first_row = s * size.n_rows,
                      .n_rows = size.n_rows,
                      .first_pos = size.n_tokens - size.n_rows,
                      .full_pages = full_table_->data() + size_t(s) * n_pages(),
                      .packed_pages = packed_table_->data() + size_t(s) * n_pages()});
}

/// Before anything large is made: pages, tables, queries and results.
void BenchPages::require_room() const {
  size_t bytes = 0;
  for (int p = 0; p < n_pages(); p++)
    bytes += (reads_full(p) ? layout_.full_page_bytes() : 0) +
             (reads_packed(p) ? layout_.packed_page_bytes() : 0) + 2 * sizeof(int32_t);
  bytes += sizeof(float) * 3 * layout_.shape.n_heads * layout_.shape.head_dim * size_.n_rows;
  const double needed = static_cast<double>(bytes) * size_.n_sequences;
  const size_t free = free_memory(backend_);
  if (needed > static_cast<double>(free))
    throw_error(ErrorCode::OutOfMemory,
                "{} sequence(s) of {} tokens need {:.1f} GiB, {} are free; give a smaller --depth or --batch",
                size_.n_sequences, size_.n_tokens, needed / (1 << 30), format_bytes(free));
}

/// Slots in random order; a form that no row reads has none.
void BenchPages::choose_slots() {
  for (int s = 0; s < size_.n_sequences; s++)
    for (int p = 0; p < n_pages(); p++) {
      full_slots_.push_back(reads_full(p) ? static_cast<int32_t>(n_full_++) : -1);
      packed_slots_.push_back(reads_packed(p) ? static_cast<int32_t>(n_packed_++) : -1);
    }
  cases::Random random(5);
  for (const auto& [slots, n] : {std::pair{&full_slots_, n_full_}, {&packed_slots_, n_packed_}}) {
    const std::vector<int32_t> order = random.permutation(static_cast<int>(n));
    for (int32_t& slot : *slots)
      if (slot >= 0) slot = order[static_cast<size_t>(slot)];
  }
}

void BenchPages::fill_full() {
  const KvShape& shape = layout_.shape;
  const size_t head = layout_.full_head_bytes(), layer_bytes = head * shape.n_kv_heads;
  const DeviceArray<std::byte> made(backend_, n_made() * layer_bytes);
  for (int p = 0; p < n_made(); p++)
    for (int h = 0; h < shape.n_kv_heads; h++)
      backend_.import_full(made.data() + p * layer_bytes + h * head, shape.head_dim,
                           world_->canonical_full(0, p, h));
  for (size_t i = 0; i < full_slots_.size(); i++) {
    if (full_slots_[i] < 0) continue;
    const int from = source(static_cast<int>(i) / n_pages(), static_cast<int>(i) % n_pages());
    for (int layer = 0; layer < shape.n_layers; layer++)
      backend_.copy(
          full_->data() + full_slots_[i] * layout_.full_page_bytes() + layout_.full_offset(layer, 0),
          made.data() + from * layer_bytes, layer_bytes);
  }
  backend_.sync();
}

void BenchPages::fill_packed() {
  if (n_packed_ == 0) return;
  const KvShape& shape = layout_.shape;
  const LayerLayout& part = layout_.layer(0);
  const int n_complete = n_made() - 1;  // the last page is read in full
  const DeviceArray<std::byte> made(backend_, n_complete * part.bytes());
  for (int p = 0; p < n_complete; p++) {
    std::byte* at = made.data() + p * part.bytes();
    if (part.int2_heads())
      for (int h = 0; h < shape.n_kv_heads; h++)
        backend_.import_packed(at + layout_.packed_offset(0, h) - part.offset, layout_.int2(0),
                               world_->canonical_packed(0, p, h));
    else
      import_sides(backend_, at, part, shape, world_->canonical_packed(0, p, 0));
  }
  for (size_t i = 0; i < packed_slots_.size(); i++) {
    if (packed_slots_[i] < 0) continue;
    const int from = source(static_cast<int>(i) / n_pages(), static_cast<int>(i) % n_pages());
    for (int layer = 0; layer < shape.n_layers; layer++)
      backend_.copy(
          packed_->data() + packed_slots_[i] * layout_.packed_page_bytes() + layout_.layer(layer).offset,
          made.data() + from * part.bytes(), part.bytes());
  }
  backend_.sync();
}

std::vector<float> BenchPages::expected(int sequence, const std::vector<float>& query,
                                        float softmax_scale) const {
  const auto reference = make_reference_backend(LinearPrecision::F32);
  const cases::DevicePages pages(*reference, world_);
  pages.fill_full();
  pages.fill_packed();
  std::vector<int32_t> full, packed;
  for (int p = 0; p < n_pages(); p++) {
    const bool is_packed = rule_.packed(n_pages() - 1, p);
    full.push_back(is_packed ? -1 : world_->full_slot(0, source(sequence, p)));
    packed.push_back(is_packed ? world_->packed_slot(0, source(sequence, p)) : -1);
  }
  const SequenceView view{
      .n_rows = 1, .first_pos = size_.n_tokens - 1, .full_pages = full.data(), .packed_pages = packed.data()};
  const auto q = cases::on_device(*reference, query);
  const DeviceArray<float> out(*reference, query.size());
  reference->attend({.layer = 0,
                     .q = q.data(),
                     .out = out.data(),
                     .kv = pages.view(),
                     .sequences = {&view, 1},
                     .softmax_scale = softmax_scale,
                     .soft_cap = 0});
  return out.download();
}

}  // namespace kv2::app
