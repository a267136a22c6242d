// SPDX-License-Identifier: Apache-2.0
// KvCache: memory, sequences, reservations and prefixes. One forward's bookkeeping is in kv_cache_step.cpp.
#include "cache/kv_cache.h"

#include <algorithm>

#include "base/check.h"
#include "cache/kv_cache_impl.h"
#include "ops/device_extras.h"

namespace kv2 {
namespace {

CachePlan checked_plan(const Backend& backend, const CacheSpec& spec, const KvShape& shape,
                       const CacheCapacity& capacity, const FittedMethod& fitted) {
  spec.validate(shape.head_dim);
  const auto& transforms = fitted.transforms;
  const auto& clips = fitted.clips;
  const size_t n = shape.n_layers;
  KV2_CHECK(transforms.empty() || transforms.size() == n, "{} transforms, {} layers", transforms.size(), n);
  KV2_CHECK(clips.empty() || clips.size() == n, "{} clips, {} layers", clips.size(), n);
  const size_t width = static_cast<size_t>(shape.n_kv_heads) * shape.head_dim;
  const auto fits = [&](const Transform& t) {
    const bool both = t.encode.size() == t.decode.size();
    return both && (t.encode.empty() || t.encode.size() == width * shape.head_dim) &&
           (t.mean.empty() || t.mean.size() == width);
  };
  for (const LayerTransforms& t : transforms)
    KV2_CHECK(fits(t.k) && fits(t.v), "transform of another shape than {} KV heads of {}", shape.n_kv_heads,
              shape.head_dim);
  CachePlan plan = plan_cache(spec, shape, capacity, transforms);
  KV2_CHECK(fitted.k_tables.empty() || fitted.k_tables.size() == n, "{} tables of keys, {} layers",
            fitted.k_tables.size(), n);
  plan.layout = plan.layout.with_tables(fitted.k_tables, {});
  backend.require_formats(plan.layout);
  return plan;
}

/// What a method leaves open, by the bits of a side. At few bits one wide step: of several, the
/// least metric error picks narrow ranges, and what they clip costs more than the metric, a mean over all
/// tokens, says. At 4 bits ranges are wide anyway and the choice pays (numbers: docs/research.md).
/// A change here changes bytes of pages: it needs another number in CacheSpec::hash().
FeedbackSearch search_of(const Method& method, int bits) {
  FeedbackSearch out;
  const std::vector<float> by_bits = bits < 4 ? std::vector{1.2f} : std::vector{1.0f, 1.1f};
  for (const float step : method.steps.empty() ? by_bits : method.steps) out.steps[out.n_steps++] = step;
  out.refits = method.refits;
  return out;
}

}  // namespace

KvCache::Impl::Impl(Backend& backend, const CacheSpec& spec, const KvShape& shape,
                    const CacheCapacity& capacity, FittedMethod fitted)
    : backend(backend),
      spec(spec),
      shape(shape),
      plan(checked_plan(backend, spec, shape, capacity, fitted)),
      clips(std::move(fitted.clips)),
      value_bases(value_bases_of(fitted.transforms)),
      transforms(backend, fitted.transforms),
      factors(backend, spec.method, plan.layout, fitted.factors),
      full_slab(backend, plan.full_bytes),
      packed_slab(backend, plan.packed_bytes),
      table_slab(backend, plan.table_bytes),
      full(plan.n_full_pages),
      packed(plan.n_packed_pages),
      tree(full, packed) {
  sequences.assign(capacity.n_sequences, Sequence(pages_of(capacity.context_tokens)));
}

KvCache::Impl::Sequence& KvCache::Impl::at(SequenceId id) {
  const auto i = static_cast<size_t>(id);
  KV2_CHECK(i < sequences.size() && sequences[i].open, "sequence {} is not open", static_cast<int>(id));
  return sequences[i];
}

KvCache::Impl::Promise KvCache::Impl::need(int64_t n_tokens, int64_t target) const {
  const PageNeed need{plan.rule, spec.prefill, plan.capacity.chunk_tokens};
  return {need.full(n_tokens, target), need.packed(target)};
}

bool KvCache::Impl::promise(Sequence& s, const Promise& wanted) {
  const Promise sum{promised.full - s.promise.full + wanted.full,
                    promised.packed - s.promise.packed + wanted.packed};
  if (sum.full > full.n_slots() || sum.packed > packed.n_slots()) return false;
  promised = sum;
  s.promise = wanted;
  make_room();
  return true;
}

void KvCache::Impl::make_room() {
  for (Form form : kForms) {
    const int64_t sum = form == Form::Full ? promised.full : promised.packed;
    const int64_t excess = sum + pool(form).n_idle() - pool(form).n_slots();
    if (excess > 0) tree.evict(form, excess);  // there are as many: the promises alone fit
  }
}

void KvCache::Impl::drop_pages(Sequence& s) {
  for (Form form : kForms)
    for (int32_t slot : s.table.slots(form))
      if (slot >= 0) pool(form).drop(slot);
  s.table.clear();
}

Coder KvCache::Impl::coder(int layer, bool values) const {
  KV2_CHECK(layer >= 0 && layer < shape.n_layers, "layer {} of {}", layer, shape.n_layers);
  if (!plan.layout.packs()) return {};
  const LayerLayout& part = plan.layout.layer(layer);
  const int group = (values ? part.v : part.k).group;
  if (part.rounded) return {.kind = CoderKind::Round, .group = group};
  const std::optional<float>& own = values ? spec.method.clip_v : spec.method.clip_k;
  float ratio = 1;
  if (own) {
    ratio = *own;
  } else if (!clips.empty()) {
    ratio = values ? clips[layer].second : clips[layer].first;
  }
  Coder out{.kind = values ? spec.method.coder_v() : spec.method.coder_k(),
            .group = group,
            .clip_index = clip_index(ratio, shape.head_dim),
            .range = spec.method.range,
            .norm_rule = spec.method.norm_rule};
  if (out.kind == CoderKind::Feedback) {
    out.clip_index = -1;
    out.tables = values ? factors.v(layer) : factors.k(layer);
    out.search = search_of(spec.method, (values ? part.v : part.k).bits);
  }
  return out;
}

KvCache::KvCache(Backend& backend, const CacheSpec& spec, const KvShape& shape, const CacheCapacity& capacity,
                 std::vector<LayerTransforms> transforms, std::vector<std::pair<float, float>> clips)
    : KvCache(backend, spec, shape, capacity,
              FittedMethod{.transforms = std::move(transforms), .clips = std::move(clips)}) {}

KvCache::KvCache(Backend& backend, const CacheSpec& spec, const KvShape& shape, const CacheCapacity& capacity,
                 FittedMethod fitted) {
  try {
    impl_ = std::make_unique<Impl>(backend, spec, shape, capacity, std::move(fitted));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::OutOfMemory) throw;
    throw e.in(fmt::format(
        "KV cache of {} for {} sequences of {} tokens (a shorter context or fewer sequences take less)",
        spec.method.name, capacity.n_sequences, capacity.context_tokens));
  }
}
KvCache::~KvCache() = default;

const CacheSpec& KvCache::spec() const {
  return impl_->spec;
}
const CachePlan& KvCache::plan() const {
  return impl_->plan;
}
const KvShape& KvCache::shape() const {
  return impl_->shape;
}
const Visibility& KvCache::rule() const {
  return impl_->plan.rule;
}
int64_t KvCache::n_tokens(SequenceId sequence) const {
  return impl_->at(sequence).n_tokens;
}
Coder KvCache::coder_k(int layer) const {
  return impl_->coder(layer, false);
}
Coder KvCache::coder_v(int layer) const {
  return impl_->coder(layer, true);
}

const std::string& KvCache::value_bases() const {
  return impl_->value_bases;
}
KvCache::DeviceTransform KvCache::transforms(int layer) const {
  const auto m = impl_->transforms.layer(layer);
  return {m[0], m[1], m[2], m[3], m[4], m[5], impl_->transforms.rotates_keys(layer)};
}

std::optional<SequenceId> KvCache::open() {
  return open(0);
}

std::optional<SequenceId> KvCache::open(uint64_t salt) {
  auto& all = impl_->sequences;
  const auto unused = std::find_if(all.begin(), all.end(), [](const auto& s) { return !s.open; });
  if (unused == all.end()) return std::nullopt;
  unused->open = true;
  unused->salt = salt;
  return static_cast<SequenceId>(unused - all.begin());
}

void KvCache::close(SequenceId sequence) {
  Impl::Sequence& s = impl_->at(sequence);
  impl_->drop_pages(s);
  impl_->promise(s, {});
  PageTable table = std::move(s.table);
  s = Impl::Sequence(0);
  s.table = std::move(table);
}

std::optional<SequenceId> KvCache::fork(SequenceId sequence) {
  Impl& c = *impl_;
  const Impl::Sequence& from = c.at(sequence);
  KV2_CHECK(from.step.n_rows == 0, "sequence {} is in a forward", static_cast<int>(sequence));
  const auto id = open(from.salt);
  if (!id) return std::nullopt;
  Impl::Sequence& to = c.at(*id);
  if (!c.promise(to, c.need(from.n_tokens, from.n_tokens))) {
    close(*id);
    return std::nullopt;
  }
  to.n_tokens = to.target = from.n_tokens;
  to.full_until = from.full_until;
  to.n_released = from.n_released;
  const int64_t n_complete = from.n_tokens / kPageTokens;
  for (int64_t j = 0; j < n_complete; j++) {
    for (Form form : kForms) {
      const int32_t slot = from.table.slot(form, j);
      if (slot < 0) continue;
      c.pool(form).share(slot);
      to.table.set(form, j, slot);
    }
  }
  if (from.n_tokens % kPageTokens != 0) {
    const int32_t slot = c.full.take();
    to.table.set(Form::Full, n_complete, slot);
    c.backend.copy(c.full_page(slot), c.full_page(from.table.slot(Form::Full, n_complete)),
                   c.plan.layout.full_page_bytes());
  }
  return id;
}

bool KvCache::reserve(SequenceId sequence, int64_t n_tokens) {
  Impl::Sequence& s = impl_->at(sequence);
  const int64_t context = impl_->plan.capacity.context_tokens;
  KV2_CHECK(n_tokens >= 0, "{} tokens", n_tokens);
  if (n_tokens > context - s.n_tokens) {
    throw_error(ErrorCode::BadArgument, "{} tokens after {} are more than the context of {} tokens", n_tokens,
                s.n_tokens, context);
  }
  const int64_t target = s.n_tokens + n_tokens;
  if (target <= s.target) return true;
  if (!impl_->promise(s, impl_->need(s.n_tokens, target))) return false;
  s.target = target;
  return true;
}

int64_t KvCache::attach_prefix(SequenceId sequence, std::span<const int32_t> tokens) {
  Impl& c = *impl_;
  Impl::Sequence& s = c.at(sequence);
  KV2_CHECK(s.n_tokens == 0 && s.step.n_rows == 0, "sequence {} has {} tokens", static_cast<int>(sequence),
            s.n_tokens);
  const int64_t most = std::min<int64_t>(tokens.size(), c.plan.capacity.context_tokens);
  if (most < 1) return 0;
  tokens = tokens.first((most - 1) / kPageTokens * kPageTokens);  // at least one token is left to forward
  const std::vector<PageForms> found = c.tree.find(s.salt, tokens);
  const PrefillPolicy prefill = c.exact() ? PrefillPolicy::Exact : PrefillPolicy::Windowed;
  const int64_t n_pages = longest_usable(found, c.plan.rule, prefill);
  if (n_pages == 0) return 0;

  std::vector<PageForms> used(n_pages);
  for (int64_t j = 0; j < n_pages; j++) {
    const bool packed = !c.exact() && c.plan.rule.packed(static_cast<int>(n_pages), static_cast<int>(j));
    (packed ? used[j].packed : used[j].full) = found[j].of(packed ? Form::Packed : Form::Full);
    for (Form form : kForms) {  // held from here on, so that making room for the promise cannot evict them
      if (used[j].of(form) < 0) continue;
      c.pool(form).share(used[j].of(form));
      s.table.set(form, j, used[j].of(form));
    }
  }
  const int64_t n = n_pages * kPageTokens;
  if (!c.promise(s, c.need(n, std::max(n, s.target)))) {
    c.drop_pages(s);
    c.make_room();
    return 0;
  }
  c.tree.touch(s.salt, tokens, used);
  s.n_tokens = n;
  s.target = std::max(n, s.target);
  s.n_released = c.exact() ? 0 : PageNeed{c.plan.rule}.packed(n);
  return n;
}

void KvCache::remember_prefix(SequenceId sequence, std::span<const int32_t> tokens) {
  Impl::Sequence& s = impl_->at(sequence);
  s.tokens.assign(tokens.begin(), tokens.end());
  impl_->remember(s);
}

void KvCache::Impl::remember(Sequence& s) {
  int64_t n = std::min<int64_t>(s.tokens.size(), s.n_tokens);
  if (exact()) n = std::min(n, s.full_until);
  std::vector<PageForms> pages(n / kPageTokens);
  for (size_t j = 0; j < pages.size(); j++) pages[j] = s.table.forms(j);
  tree.remember(s.salt, s.tokens, pages);
}

std::vector<std::byte> KvCache::full_bytes(SequenceId sequence, int64_t page, int layer, int kv_head) const {
  Impl& c = *impl_;
  const PageTable& table = c.at(sequence).table;
  if (page < 0 || page >= table.n_pages() || table.slot(Form::Full, page) < 0) return {};
  std::vector<std::byte> out(c.plan.layout.full_head_bytes());
  c.backend.sync();
  c.backend.export_full(c.full_page(table.slot(Form::Full, page)) + c.plan.layout.full_offset(layer, kv_head),
                        c.shape.head_dim, out);
  return out;
}

std::vector<std::byte> KvCache::packed_bytes(SequenceId sequence, int64_t page, int layer,
                                             int kv_head) const {
  Impl& c = *impl_;
  const PageTable& table = c.at(sequence).table;
  if (page < 0 || page >= table.n_pages() || table.slot(Form::Packed, page) < 0) return {};
  const PageLayout& layout = c.plan.layout;
  const std::byte* bytes = c.packed_page(table.slot(Form::Packed, page));
  c.backend.sync();
  if (!layout.layer(layer).int2_heads()) {
    std::vector<std::byte> out(layout.layer(layer).bytes());
    export_sides(c.backend, bytes + layout.layer(layer).offset, layout.layer(layer), layout.shape, out);
    return out;
  }
  std::vector<std::byte> out(layout.packed_head_bytes(layer));
  c.backend.export_packed(bytes + layout.packed_offset(layer, kv_head), layout.int2(layer), out);
  return out;
}

size_t KvCache::used_bytes() const {
  const Impl& c = *impl_;
  return (c.full.n_used() - c.full.n_idle()) * c.plan.layout.full_page_bytes() +
         (c.packed.n_used() - c.packed.n_idle()) * c.plan.layout.packed_page_bytes();
}

}  // namespace kv2
