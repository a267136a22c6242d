// SPDX-License-Identifier: Apache-2.0
// The short way through the library: Engine::open() loads everything, generate() runs one request to its end.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/memory.h"
#include "engine/device.h"
#include "engine/engine_impl.h"
#include "ops/device_extras.h"

namespace kv2 {
namespace {

/// Tokens of one request as text, piece by piece; silent where there is no tokenizer.
class TextStream {
 public:
  TextStream(const Tokenizer* tokenizer, const std::function<bool(std::string_view)>& on_text,
             std::string* text)
      : on_text_(on_text), text_(text) {
    if (tokenizer != nullptr) detokenizer_.emplace(*tokenizer);
  }
  /// false: the listener wants no more.
  bool push(int32_t token) { return !detokenizer_ || emit(detokenizer_->push(token)); }
  void finish() {
    if (detokenizer_) emit(detokenizer_->finish());
  }

 private:
  bool emit(const std::string& piece) {
    *text_ += piece;
    if (!piece.empty() && wanted_ && on_text_) wanted_ = on_text_(piece);
    return wanted_;
  }

  std::optional<Detokenizer> detokenizer_;
  const std::function<bool(std::string_view)>& on_text_;
  std::string* text_;
  bool wanted_ = true;
};

/// The context asked for, or with 0 the longest that the model allows and free memory holds.
int64_t choose_context(const Model& model, const OpenOptions& o) {
  const KvShape shape = model.config().kv_shape();
  CacheCapacity capacity{.context_tokens = o.context != 0 ? o.context : model.config().context,
                         .n_sequences = o.n_sequences,
                         .chunk_tokens = o.chunk_tokens};
  if (o.context < 0 || o.context > model.config().context)
    return o.context;  // the engine says what is wrong with it
  o.cache.validate(shape.head_dim);
  const size_t room = free_memory(model.backend()) / 20 * 19,
               needed = plan_cache(o.cache, shape, capacity).total_bytes();
  if (needed <= room) return capacity.context_tokens;
  const int64_t fits = context_that_fits(o.cache, shape, capacity, room);
  if (o.context > 0 || fits < 1)
    throw_error(
        ErrorCode::OutOfMemory,
        "a context of {} tokens for {} sequences needs {} of KV cache and {} are free; {} tokens would fit",
        capacity.context_tokens, o.n_sequences, format_bytes(needed), format_bytes(room), fits);
  return fits;
}

}  // namespace

std::unique_ptr<Engine> Engine::open(const OpenOptions& o) {
  if (o.chunk_tokens < 1 || o.n_sequences < 1)
    throw_error(ErrorCode::BadArgument, "chunk_tokens is {} and n_sequences {}, supported are 1 and above",
                o.chunk_tokens, o.n_sequences);
  OwnedModel own;
  own.backend = open_device({.device = o.device, .n_threads = o.n_threads});
  own.model = Model::load(o.model, *own.backend, std::max(o.chunk_tokens, o.n_sequences));
  own.tokenizer = load_tokenizer(own.model->file(), &own.why_no_tokenizer);
  std::optional<Calibration> calibration;
  if (!o.calibration.empty()) calibration = Calibration::load(o.calibration);
  const EngineOptions options{.cache = o.cache,
                              .context = choose_context(*own.model, o),
                              .n_sequences = o.n_sequences,
                              .chunk_tokens = o.chunk_tokens,
                              .absorb_values = o.absorb_values};
  Model& model = *own.model;
  auto impl = std::make_unique<Impl>(model, options, calibration ? &*calibration : nullptr, std::move(own));
  calibration.reset();  // the cache has its own
  trim_heap();
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

GenerateResult Engine::generate(const GenerateRequest& request,
                                const std::function<bool(std::string_view)>& on_text) {
  Impl& m = *impl_;
  const RequestId id = m.submit(request);
  GenerateResult result;
  result.prompt_tokens = m.waiting.back().n_prompt;
  TextStream text(m.owned.tokenizer.get(), on_text, &result.text);
  std::vector<GenerateEvent> others = std::exchange(m.kept, {});
  const auto take = [&](const GenerateEvent& e) {
    if (e.request != id) {
      others.push_back(e);
      return;
    }
    result.tokens.push_back(e.token);
    result.reused_tokens = e.reused_tokens;
    result.finish = e.finish;
    const bool more = e.finish == FinishReason::EndOfText || text.push(e.token);
    if (!more && e.finish == FinishReason::None) result.finish = FinishReason::Cancelled;
  };
  try {
    while (result.finish == FinishReason::None)
      for (const GenerateEvent& e : m.step()) take(e);
    text.finish();
  } catch (...) {  // of the listener, or of the step
    m.cancel(id);
    m.kept = std::move(others);
    throw;
  }
  m.cancel(id);  // nothing, unless the listener stopped it
  m.kept = std::move(others);
  return result;
}

}  // namespace kv2
