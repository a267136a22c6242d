// SPDX-License-Identifier: Apache-2.0
// The inside of Engine. Requests wait in order of arrival for a place in the cache; running ones are in order
// of admission. The cache is planned for n_sequences of the whole context, so what runs can always finish.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"

namespace kv2 {

/// What Engine::open() loads and an engine then owns; empty for an engine over a caller's model.
struct OwnedModel {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::string why_no_tokenizer;
};

struct Engine::Impl {
  Impl(Model& m, const EngineOptions& o, const Calibration* calibration, OwnedModel own);
  ~Impl();

  RequestId submit(const GenerateRequest& request);
  void cancel(RequestId id);
  std::vector<GenerateEvent> step();
  std::vector<int32_t> encode(std::string_view text) const;

  OwnedModel owned;  // first, so that it is destroyed last
  Model& model;
  EngineOptions options;
  KvCache cache;
  std::deque<Sequence> waiting, running;
  std::vector<GenerateEvent> kept;  // of other requests, while generate() looks at one
  std::vector<float> logits;        // [rows of a step that sample, vocab], unless it is greedy
  std::vector<int32_t> best;        // [rows of a step that sample], if it is
  bool greedy = true;               // of the step
  int64_t next_id = 1;

 private:
  void admit();
  std::vector<Share> schedule();
  void stop(Sequence& sequence);
  Batch make_batch(const std::vector<Share>& shares) const;
  std::vector<GenerateEvent> advance(const std::vector<Share>& shares);
  bool shares_prefixes() const { return options.cache.prefill == PrefillPolicy::Windowed; }
};

}  // namespace kv2
