// Engine: a model, its tokenizer and one cache, advancing many sequences. step() = schedule, forward, sample, advance.
// One thread calls it. The C++ API of the library (kv2/engine.h) and the program are thin over this.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/sampler.h"
#include "kv2/calibrate.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace kv2 {

enum class RequestId : int64_t {};
enum class FinishReason : uint8_t { None, EndOfText, Length, Context, Cancelled };
const char* name_of(FinishReason r);

struct GenerateRequest {
  std::vector<int32_t> prompt;  // token ids, not empty
  int64_t max_tokens = 128;
  SamplingParams sampling;
  std::vector<int32_t> stop_tokens;  // beside the model's own
  bool ignore_eos = false;
};

/// What a step produced for one request.
struct GenerateEvent {
  RequestId request;
  int32_t token = -1;  // -1: none (the request only ended)
  FinishReason finish = FinishReason::None;
};

struct EngineOptions {
  CacheSpec cache;
  int64_t context = 0;    // tokens per sequence, prompt and answer
  int n_sequences = 1;
  int chunk_tokens = 512; // prompt tokens of one step
};

class Engine {
 public:
  /// The model must outlive the engine. calibration may be nullptr where the method needs none.
  Engine(Model& model, const EngineOptions& options, const Calibration* calibration);
  ~Engine();

  /// Errors: BadArgument (empty prompt; prompt longer than the context: both numbers; token out of range).
  RequestId submit(const GenerateRequest& request);
  void cancel(RequestId request);
  bool idle() const;
  /// One batch: decode rows of running requests first, then prompt chunks of waiting ones as rows are left.
  std::vector<GenerateEvent> step();

  KvCache& cache();
  Model& model();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The tokenizer of a model file (GGUF metadata, or tokenizer.json beside config.json); nullptr with a reason in
/// `why_not` when the model has none that is supported.
std::unique_ptr<Tokenizer> load_tokenizer(const TensorFile& file, std::string* why_not);
/// The chat template text of the model's metadata, "" when there is none.
std::string load_chat_template(const TensorFile& file);

}  // namespace kv2
