// SPDX-License-Identifier: Apache-2.0
// One forward of KvCache: begin() gives new rows their full pages and says which pages to demote, commit()
// counts the rows and lets go of full pages. A page is demoted at the end of the forward after which the next
// query reads it packed; during that forward both forms exist, so that its early queries still find the page
// in full.
#include "base/check.h"
#include "cache/kv_cache_impl.h"

namespace kv2 {

KvView KvCache::Impl::view() {
  return {.layout = plan.layout, .full = full_slab.data(), .packed = packed_slab.data(), .rule = plan.rule};
}

void KvCache::Impl::check_slice(const Slice& slice) {
  const Sequence& s = at(slice.sequence);
  const int id = static_cast<int>(slice.sequence);
  KV2_CHECK(s.step.n_rows == 0, "sequence {} is in a forward already", id);
  KV2_CHECK(slice.n_rows > 0 && s.n_tokens + slice.n_rows <= s.target,
            "sequence {}: {} rows after {} tokens, {} reserved", id, slice.n_rows, s.n_tokens, s.target);
  KV2_CHECK(slice.n_rows <= plan.capacity.chunk_tokens, "{} rows in chunks of {}", slice.n_rows,
            plan.capacity.chunk_tokens);
  KV2_CHECK(slice.full_until == 0 || spec.prefill == PrefillPolicy::Exact,
            "full_until {} with windowed prefill", slice.full_until);
  // A prompt that goes on after its pages were packed cannot be read in full any more.
  KV2_CHECK(s.n_released == 0 || s.n_tokens >= slice.full_until,
            "sequence {}: full_until grew to {} after {} tokens were packed", id, slice.full_until,
            s.n_released * kPageTokens);
}

void KvCache::Impl::take_full_pages(Sequence& s, int n_rows) {
  if (s.n_tokens % kPageTokens != 0) {
    const int32_t slot = s.table.slot(Form::Full, s.n_tokens / kPageTokens);
    KV2_CHECK(slot >= 0 && full.refs(slot) == 1, "the page being written is missing or shared");
  }
  for (int64_t j = pages_of(s.n_tokens); j < pages_of(s.n_tokens + n_rows); j++)
    s.table.set(Form::Full, j, full.take());
}

void KvCache::Impl::demote(Sequence& s, std::vector<Demotion>& out) {
  const int64_t end = s.n_tokens + s.step.n_rows;
  if (exact() && end <= s.full_until) return;
  const int next_page = static_cast<int>(end / kPageTokens);
  for (int64_t j = plan.rule.sink_pages + s.n_released; plan.rule.packed(next_page, static_cast<int>(j));
       j++) {
    if (s.table.slot(Form::Packed, j) >= 0)
      continue;  // by an earlier step of a prompt under Exact, or from the tree
    const int32_t from = s.table.slot(Form::Full, j);
    KV2_CHECK(from >= 0, "page {} has neither form", j);
    int32_t to = tree.packed_of(from);
    if (to >= 0) {  // another holder demoted this very page before
      packed.share(to);
    } else {
      to = packed.take();
      out.push_back({.full_page = from, .packed_page = to, .page = static_cast<int32_t>(j)});
      s.demoted.push_back(j);
    }
    s.table.set(Form::Packed, j, to);
  }
}

void KvCache::Impl::upload_table(Sequence& s, int64_t index) {
  auto* device = reinterpret_cast<int32_t*>(table_slab.data()) + index * 2 * s.table.n_pages();
  for (Form form : kForms) {
    const PageTable::Range r = s.table.take_changes(form);
    if (r.size() == 0) continue;
    const int64_t row = form == Form::Full ? 0 : s.table.n_pages();
    backend.upload(device + row + r.first, s.table.slots(form).data() + r.first, r.size() * sizeof(int32_t));
  }
}

SequenceView KvCache::Impl::sequence_view(const Sequence& s, int64_t index) const {
  const auto* device = reinterpret_cast<const int32_t*>(table_slab.data()) + index * 2 * s.table.n_pages();
  return {.first_row = s.step.first_row,
          .n_rows = s.step.n_rows,
          .first_pos = s.n_tokens,
          .full_until = s.step.full_until,
          .full_pages = device,
          .packed_pages = device + s.table.n_pages()};
}

void KvCache::Impl::commit(Sequence& s) {
  for (int64_t j : s.demoted) tree.add_packed(s.table.slot(Form::Full, j), s.table.slot(Form::Packed, j));
  s.demoted.clear();
  const int64_t n_complete = s.n_tokens / kPageTokens;
  s.n_tokens += s.step.n_rows;
  s.step = {};
  const int page = static_cast<int>(s.n_tokens / kPageTokens);  // of the next query
  if (page > n_complete && !s.tokens.empty()) remember(s);      // while full forms are still there
  for (int64_t j = plan.rule.sink_pages + s.n_released; plan.rule.packed(page, static_cast<int>(j)); j++) {
    if (s.table.slot(Form::Packed, j) < 0) break;  // a prompt under Exact
    full.drop(s.table.slot(Form::Full, j));
    s.table.set(Form::Full, j, -1);
    s.n_released++;
  }
  KV2_CHECK(promise(s, need(s.n_tokens, s.target)), "a promise grew");  // and makes room for what became idle
}

CacheStep KvCache::begin(std::span<const Slice> slices) {
  Impl& c = *impl_;
  CacheStep step{.kv = c.view()};
  for (const Slice& slice : slices) {
    c.check_slice(slice);
    Impl::Sequence& s = c.at(slice.sequence);
    c.take_full_pages(s, slice.n_rows);
    s.step = slice;
    s.full_until = std::max(s.full_until, slice.full_until);
    c.demote(s, step.demotions);
    const auto index = static_cast<int64_t>(slice.sequence);
    c.upload_table(s, index);
    step.sequences.push_back(c.sequence_view(s, index));
  }
  return step;
}

void KvCache::commit(std::span<const Slice> slices) {
  for (const Slice& slice : slices) {
    Impl::Sequence& s = impl_->at(slice.sequence);
    KV2_CHECK(s.step.n_rows == slice.n_rows && s.step.first_row == slice.first_row,
              "commit of other slices than begin's");
    impl_->commit(s);
  }
}

}  // namespace kv2
