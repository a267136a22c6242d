// SPDX-License-Identifier: Apache-2.0
// Engine: continuous batching over one cache. step() = admit, schedule, forward, sample, advance.
#include "engine/engine.h"

#include <algorithm>

#include "base/check.h"
#include "engine/engine_impl.h"
#include "engine/transforms.h"

namespace kv2 {
namespace {

EngineOptions checked(EngineOptions o, const Model& model) {
  const int64_t trained = model.config().context;
  if (o.context == 0) o.context = trained;
  if (o.context < 1 || o.context > trained)
    throw_error(ErrorCode::BadArgument, "context is {} tokens, this model supports 1 to {}", o.context,
                trained);
  if (o.n_sequences < 1 || o.n_sequences > model.max_rows())
    throw_error(ErrorCode::BadArgument, "{} sequences at once, supported are 1 to {} (rows of one step)",
                o.n_sequences, model.max_rows());
  if (o.chunk_tokens < 1)
    throw_error(ErrorCode::BadArgument, "chunks of {} tokens, supported are 1 and above", o.chunk_tokens);
  o.chunk_tokens = std::min(o.chunk_tokens, model.max_rows());
  if (o.absorb_values) require_turned_values(std::span(&o.cache, 1));
  return o;
}

KvCache make_engine_cache(Model& model, const EngineOptions& o, const Calibration* calibration) {
  const KvShape shape = model.config().kv_shape();
  if (calibration != nullptr && o.cache.method.needs_calibration())
    calibration->require_model(model.fingerprint());
  FittedMethod fitted = fit_method(o.cache, shape, calibration);
  if (o.absorb_values) model.absorb_values(fitted.transforms);
  const CacheCapacity capacity{.context_tokens = o.context,
                               .n_sequences = o.n_sequences,
                               .chunk_tokens = o.chunk_tokens,
                               .prefix_full_pages = 0};
  return KvCache(model.backend(), o.cache, shape, capacity, std::move(fitted));
}

}  // namespace

const char* name_of(FinishReason r) {
  switch (r) {
    case FinishReason::None:
      return "none";
    case FinishReason::EndOfText:
      return "end of text";
    case FinishReason::Length:
      return "length";
    case FinishReason::Context:
      return "context full";
    case FinishReason::Cancelled:
      return "cancelled";
  }
  return "unknown";
}

Engine::Impl::Impl(Model& m, const EngineOptions& o, const Calibration* calibration, OwnedModel own)
    : owned(std::move(own)),
      model(m),
      options(checked(o, m)),
      cache(make_engine_cache(m, options, calibration)) {
  m.require_values_of(cache);
}
Engine::Impl::~Impl() = default;

RequestId Engine::Impl::submit(const GenerateRequest& request) {
  request.sampling.validate();
  std::vector<int32_t> prompt = request.prompt.empty() ? encode(request.text) : request.prompt;
  const int64_t n = static_cast<int64_t>(prompt.size());
  if (n == 0) throw_error(ErrorCode::BadArgument, "the prompt is empty: nothing to continue");
  if (request.max_tokens < 1)
    throw_error(ErrorCode::BadArgument, "max_tokens is {}, supported are 1 and above", request.max_tokens);
  if (n >= options.context)
    throw_error(ErrorCode::BadArgument,
                "the prompt has {} tokens, the context {}: a prompt needs one token less at least", n,
                options.context);
  for (int32_t token : prompt)
    if (token < 0 || token >= model.config().vocab)
      throw_error(ErrorCode::BadArgument, "token {} is outside the vocabulary of {} tokens", token,
                  model.config().vocab);
  const RequestId id{next_id++};
  waiting.emplace_back(id, request, std::move(prompt));
  return id;
}

void Engine::Impl::stop(Sequence& s) {
  if (s.cache) cache.close(*s.cache);
  s.cache.reset();
  s.n_cached = 0;
}

void Engine::Impl::cancel(RequestId id) {
  const auto is = [&](const Sequence& s) { return s.id == id; };
  std::erase_if(waiting, is);
  for (Sequence& s : running)
    if (is(s)) stop(s);
  std::erase_if(running, is);
  std::erase_if(kept, [&](const GenerateEvent& e) { return e.request == id; });
}

void Engine::Impl::admit() {
  while (!waiting.empty() && static_cast<int>(running.size()) < options.n_sequences) {
    const auto opened = cache.open();
    if (!opened) return;
    Sequence s = std::move(waiting.front());
    waiting.pop_front();
    s.cache = *opened;
    if (shares_prefixes()) {
      s.n_cached = s.n_reused = cache.attach_prefix(*s.cache, s.tokens);
      cache.remember_prefix(*s.cache, s.tokens);
    }
    running.push_back(std::move(s));
  }
}

/// Shares whose pages are taken; the others wait for the next step. Never empty while anything runs, as the
/// cache was planned for n_sequences of the whole context.
std::vector<Share> Engine::Impl::schedule() {
  std::vector<int64_t> pending;
  for (const Sequence& s : running) pending.push_back(s.pending());
  std::vector<Share> shares =
      plan_step(pending, {.max_rows = model.max_rows(), .chunk_tokens = options.chunk_tokens});
  std::erase_if(shares, [&](const Share& s) { return !cache.reserve(*running[s.index].cache, s.n_rows); });
  KV2_CHECK(!shares.empty() || running.empty(), "{} sequences and no pages for any", running.size());
  return shares;
}

Batch Engine::Impl::make_batch(const std::vector<Share>& shares) const {
  Batch batch;
  for (const Share& share : shares) {
    const Sequence& s = running[share.index];
    const int first_row = static_cast<int>(batch.tokens.size());
    const auto from = s.tokens.begin() + s.n_cached;
    batch.tokens.insert(batch.tokens.end(), from, from + share.n_rows);
    batch.slices.push_back({.sequence = *s.cache,
                            .first_row = first_row,
                            .n_rows = share.n_rows,
                            .full_until = options.cache.prefill == PrefillPolicy::Exact ? s.n_prompt : 0});
    if (share.n_rows == s.pending()) batch.logit_rows.push_back(first_row + share.n_rows - 1);
  }
  return batch;
}

/// Counts the rows, samples where a sequence is complete, and ends what has ended.
std::vector<GenerateEvent> Engine::Impl::advance(const std::vector<Share>& shares) {
  std::vector<GenerateEvent> events;
  const size_t vocab = model.config().vocab;
  size_t row = 0;
  for (const Share& share : shares) {
    Sequence& s = running[share.index];
    const bool complete = share.n_rows == s.pending();
    s.n_cached += share.n_rows;
    if (!complete) continue;
    const int32_t token =
        greedy ? require_token(best[row], vocab) : s.sampler.pick({logits.data() + row * vocab, vocab});
    row++;
    const FinishReason finish = s.push(token, model.config().eos, options.context);
    events.push_back({.request = s.id, .token = token, .finish = finish, .reused_tokens = s.n_reused});
    if (finish == FinishReason::None) continue;
    // A chat goes on from here: its next prompt begins with this one and its answer.
    if (shares_prefixes()) cache.remember_prefix(*s.cache, {s.tokens.data(), size_t(s.n_cached)});
    stop(s);
  }
  std::erase_if(running, [](const Sequence& s) { return !s.cache; });
  return events;
}

std::vector<GenerateEvent> Engine::Impl::step() {
  if (!kept.empty()) return std::exchange(kept, {});
  admit();
  const std::vector<Share> shares = schedule();
  if (shares.empty()) return {};
  const Batch batch = make_batch(shares);
  // One sequence that samples needs logits on the host, and they come for all.
  greedy = std::all_of(shares.begin(), shares.end(),
                       [&](const Share& s) { return running[s.index].sampler.greedy(); });
  if (greedy) {
    best.resize(batch.logit_rows.size());
    model.forward_best(batch, cache, best);
  } else {
    logits.resize(batch.logit_rows.size() * model.config().vocab);
    model.forward(batch, cache, logits, nullptr);
  }
  return advance(shares);
}

std::vector<int32_t> Engine::Impl::encode(std::string_view text) const {
  if (!owned.tokenizer)
    throw_error(ErrorCode::Unsupported, "no tokenizer: {}; give token ids instead of text",
                owned.model ? owned.why_no_tokenizer : "this engine was made from a model alone");
  return owned.tokenizer->encode(text, Tokenizer::Special::AsText, Tokenizer::Bos::AsModelSays);
}

Engine::Engine(Model& model, const EngineOptions& options, const Calibration* calibration)
    : impl_(std::make_unique<Impl>(model, options, calibration, OwnedModel{})) {}
Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

RequestId Engine::submit(const GenerateRequest& request) {
  return impl_->submit(request);
}
void Engine::cancel(RequestId request) {
  impl_->cancel(request);
}
bool Engine::idle() const {
  return impl_->waiting.empty() && impl_->running.empty() && impl_->kept.empty();
}
std::vector<GenerateEvent> Engine::step() {
  return impl_->step();
}
std::vector<int32_t> Engine::encode(std::string_view text) const {
  return impl_->encode(text);
}
KvCache& Engine::cache() {
  return impl_->cache;
}
Model& Engine::model() {
  return impl_->model;
}
const Tokenizer* Engine::tokenizer() const {
  return impl_->owned.tokenizer.get();
}

}  // namespace kv2
