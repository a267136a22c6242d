// SPDX-License-Identifier: Apache-2.0
// Engine: a model, its tokenizer and one KV cache, advancing many sequences.
//
//   #include <kv2/engine.h>
//   #include <iostream>
//
//   int main() try {
//     auto engine = kv2::Engine::open({.model = "SmolLM2-135M-Instruct.Q4_1.gguf",
//                                      .cache = kv2::CacheSpec::parse("quarot2"),
//                                      .context = 4096});
//     const auto answer = engine->generate({.text = "The three primary colours are", .max_tokens = 64},
//                                          [](std::string_view text) {
//                                            std::cout << text << std::flush;
//                                            return true;  // false stops
//                                          });
//     std::cout << "\n" << answer.tokens.size() << " tokens, " << kv2::name_of(answer.finish) << "\n";
//   } catch (const kv2::Error& e) {
//     std::cerr << e.what() << "\n";
//     return 1;
//   }
//
// One thread calls an Engine. step() = schedule, forward, sample, advance; generate() is submit() and a loop
// of step(). What a request answers does not depend on what else runs beside it (docs/equality.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kv2/cache.h"
#include "kv2/error.h"

namespace kv2 {

class KvCache;
class Model;
class Tokenizer;
struct Calibration;

struct SamplingParams {
  float temperature = 0;  // 0: arg max
  int top_k = 0;          // 0: all
  float top_p = 1;        // (0, 1]
  float min_p = 0;        // [0, 1): keep tokens with p >= min_p · p_max
  uint64_t seed = 0;

  void validate() const;  // BadArgument naming the field, its value and the range
};

enum class RequestId : int64_t {};
enum class FinishReason : uint8_t { None, EndOfText, Length, Context, Cancelled };
const char* name_of(FinishReason r);

struct GenerateRequest {
  std::vector<int32_t> prompt;  // token ids
  std::string text;             // or text, where `prompt` is empty; special tokens in it stay text
  int64_t max_tokens = 128;
  SamplingParams sampling;
  std::vector<int32_t> stop_tokens;  // beside the model's own
  bool ignore_eos = false;           // neither the model's own end a text then, nor stop_tokens
};

/// What a step produced for one request. The token that ended a text is reported, with EndOfText.
struct GenerateEvent {
  RequestId request;
  int32_t token = -1;  // -1: none (the request only ended)
  FinishReason finish = FinishReason::None;
  int64_t reused_tokens = 0;  // of the prompt, whose pages were in the cache from an earlier request
};

struct GenerateResult {
  std::string text;                              // without the token that ended it
  std::vector<int32_t> tokens;                   // with it
  int64_t prompt_tokens = 0, reused_tokens = 0;  // see GenerateEvent
  FinishReason finish = FinishReason::None;
};

struct EngineOptions {
  CacheSpec cache;
  int64_t context = 0;  // tokens per sequence, prompt and answer
  int n_sequences = 1;
  int chunk_tokens = 512;  // prompt tokens of one step
  /// The way back from the method's basis of V becomes a part of W_o, one op less in every layer; the model
  /// then serves caches of this method alone. Errors: BadArgument where V is stored in the model's own basis,
  /// Unsupported where weights stay in the file's codes (as on a CPU by default).
  bool absorb_values = false;
};

struct OpenOptions {
  std::string model;        // a .gguf file or a Hugging Face directory
  std::string calibration;  // a file of `kv2 calibrate`; empty: none
  CacheSpec cache;
  int64_t context = 0;  // tokens per sequence; 0: as many as the model allows and free memory holds
  int n_sequences = 1;
  int chunk_tokens = 512;
  bool absorb_values = false;  // see EngineOptions
  std::string device = "cpu";
  int n_threads = 0;  // 0: the cores this process may use
};

class Engine {
 public:
  /// Loads everything and owns it. Errors: those of the model file, of the calibration, OutOfMemory with what
  /// would fit.
  static std::unique_ptr<Engine> open(const OpenOptions& options);
  /// Over a model of the caller, which must outlive the engine. calibration may be nullptr where the method
  /// needs none. Errors: BadArgument with what is supported, Mismatch where the model has absorbed the basis
  /// of another method (EngineOptions::absorb_values).
  Engine(Model& model, const EngineOptions& options, const Calibration* calibration);
  ~Engine();

  /// Errors: BadArgument (empty prompt; prompt longer than the context: both numbers; token out of range).
  RequestId submit(const GenerateRequest& request);
  /// Ends a request now and frees its pages. No event follows. Unknown or finished ids are ignored.
  void cancel(RequestId request);
  bool idle() const;
  /// One batch: decode rows of running requests first, then prompt chunks of waiting ones as rows are left.
  std::vector<GenerateEvent> step();

  /// One request to its end; text is streamed (never a cut UTF-8 sequence) until on_text returns false.
  /// on_text may be empty. Other requests advance beside it; their events are kept for the next step().
  GenerateResult generate(const GenerateRequest& request,
                          const std::function<bool(std::string_view)>& on_text);
  /// Token ids of a prompt, with the model's begin-of-text token where it wants one. Errors: Unsupported
  /// without a tokenizer, with the reason.
  std::vector<int32_t> encode(std::string_view text) const;

  KvCache& cache();
  Model& model();
  const Tokenizer* tokenizer() const;  // nullptr: only open() loads one, where the model has one

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kv2
