// SPDX-License-Identifier: Apache-2.0
// kv2 run MODEL: writes text. The prompt comes from --prompt, --file or a pipe, or a chat when there is a
// terminal. Generated text goes to stdout as it comes; everything else to stderr.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "apps/options.h"
#include "base/check.h"
#include "base/log.h"
#include "base/memory.h"
#include "calibrate/calibrate.h"
#include "engine/transforms.h"
#include "text/chat_template.h"
#include "text/text_file.h"

namespace kv2::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kDefault = "quarot2";  // and kv2 where a calibration is found

struct Options {
  ModelOptions model;
  CacheOptions cache;
  std::string kv, prompt, file, system;
  int64_t ctx = 0, n = 256;
  int chunk = 512;
  bool raw = false, json = false, ignore_eos = false, no_bos = false, absorb = false;
  SamplingParams sampling;
};

struct Answer {
  std::vector<int32_t> tokens;
  std::string text;
  int64_t n_prompt = 0, n_reused = 0;
  double prefill_seconds = 0, decode_seconds = 0;
  FinishReason finish = FinishReason::None;
};

/// Runs one request to its end. `show`: text is written to stdout as it comes.
Answer generate(Engine& engine, const Tokenizer& tokenizer, const GenerateRequest& request, bool show) {
  Answer a;
  a.n_prompt = static_cast<int64_t>(request.prompt.size());
  Detokenizer out(tokenizer, Detokenizer::Start::Continuation);  // the answer goes on with the prompt's text
  const auto emit = [&](const std::string& text) {
    a.text += text;
    if (!show || text.empty()) return;
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
      throw_error(ErrorCode::Io, "cannot write to stdout");
  };
  const auto start = Clock::now();
  auto first = start;
  const RequestId id = engine.submit(request);
  while (a.finish == FinishReason::None) {
    if (interrupted()) {
      engine.cancel(id);
      a.finish = FinishReason::Cancelled;
      break;
    }
    for (const GenerateEvent& e : engine.step()) {
      a.n_reused = e.reused_tokens;
      if (e.token >= 0) {
        if (a.tokens.empty()) first = Clock::now();
        a.tokens.push_back(e.token);
        if (e.finish != FinishReason::EndOfText) emit(out.push(e.token));
      }
      a.finish = e.finish;
    }
  }
  emit(out.finish());
  a.prefill_seconds = std::chrono::duration<double>(first - start).count();
  a.decode_seconds = std::chrono::duration<double>(Clock::now() - first).count();
  return a;
}

double rate(double n, double seconds) {
  return seconds > 0 && n > 0 ? n / seconds : 0;
}

void report(const Answer& a, Engine& engine, const Options& o) {
  const CachePlan& plan = engine.cache().plan();
  const double prefill = rate(static_cast<double>(a.n_prompt - a.n_reused), a.prefill_seconds);
  const double decode = rate(static_cast<double>(a.tokens.size()) - 1, a.decode_seconds);
  const int64_t n = a.n_prompt + static_cast<int64_t>(a.tokens.size());
  const std::string reused =
      a.n_reused > 0 ? fmt::format(" ({} of them still in the cache)", a.n_reused) : "";
  log_info(fmt::format(
      "prompt {} tokens{} at {:.0f}/s, answer {} tokens at {:.1f}/s ({}); kv {:.3g} bits all-in", a.n_prompt,
      reused, prefill, a.tokens.size(), decode, name_of(a.finish), plan.all_in_bits(n)));
  if (!o.json) return;
  const nlohmann::ordered_json j = {{"method", engine.cache().spec().method_text()},
                                    {"text", a.text},
                                    {"tokens", a.tokens},
                                    {"finish", name_of(a.finish)},
                                    {"prompt_tokens", a.n_prompt},
                                    {"reused_tokens", a.n_reused},
                                    {"history_bits", plan.layout.history_bits()},
                                    {"all_in_bits", plan.all_in_bits(n)},
                                    {"kv_bytes", plan.bytes_for(n)},
                                    {"prefill_tokens_per_second", prefill},
                                    {"decode_tokens_per_second", decode}};
  fmt::print("{}\n", j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

/// A wrong --kv is said before anything is loaded.
void check_method(const Options& o) {
  if (o.kv.empty())
    return check_default_methods({kDefault}, [&](const auto& texts) { (void)o.cache.specs(texts); });
  const CacheSpec spec = o.cache.spec(o.kv);
  if (o.absorb) require_turned_values(std::span(&spec, 1));
}

class Conversation {
 public:
  /// context: the engine's, in tokens.
  Conversation(const Options& o, Session& session, Engine& engine, int64_t context)
      : o_(o), session_(session), engine_(engine), context_(context) {
    format_ = o.raw ? std::nullopt : recognise_chat_template(session.chat_template);
    if (!o.raw && !format_)
      log_info(session.chat_template.empty()
                   ? "this model names no chat template: prompts are taken raw"
                   : "this model's chat template is none of ChatML, Llama 3: prompts are "
                     "taken raw");
  }

  /// One text and its answer. Errors: BadArgument where the context has no room for the text; the
  /// conversation is then as it was.
  Answer say(const std::string& text, bool show) {
    const Tokenizer& t = *session_.tokenizer;
    const auto bos = tokens_.empty() && !o_.no_bos ? Tokenizer::Bos::AsModelSays : Tokenizer::Bos::Never;
    std::vector<int32_t> more;
    if (!format_) {
      more = t.encode(text, Tokenizer::Special::AsText, bos);
    } else if (tokens_.empty()) {
      std::vector<ChatMessage> messages;
      const std::string system = system_message_for(session_.chat_template, o_.system);
      if (!system.empty()) messages.push_back({"system", system});
      messages.push_back({"user", text});
      more = t.encode(apply_chat_template(*format_, messages), Tokenizer::Special::Parse, bos);
    } else {
      more = t.encode(continue_chat(*format_, {{"user", text}}), Tokenizer::Special::Parse, bos);
    }
    GenerateRequest r;
    r.prompt = tokens_;
    r.prompt.insert(r.prompt.end(), more.begin(), more.end());
    require_room(r.prompt.size());
    r.max_tokens = o_.n;
    r.sampling = o_.sampling;
    r.ignore_eos = o_.ignore_eos;
    if (format_)
      if (const int32_t end = t.find(end_of_turn(*format_)); end >= 0) r.stop_tokens.push_back(end);
    Answer a = generate(engine_, t, r, show);
    before_ = tokens_.size();
    tokens_ = std::move(r.prompt);
    // The end mark is part of continue_chat's text, so a stop token is not kept.
    const size_t keep = a.tokens.size() - (a.finish == FinishReason::EndOfText ? 1 : 0);
    tokens_.insert(tokens_.end(), a.tokens.begin(), a.tokens.begin() + static_cast<std::ptrdiff_t>(keep));
    return a;
  }

  /// Forgets the last text and its answer.
  void take_back() { tokens_.resize(before_); }
  /// "the context of 128 tokens is full; --ctx N gives more, up to …"
  std::string full() const {
    return fmt::format("the context of {} tokens is full; {}", context_, room_for(context_ + 1));
  }

 private:
  /// What would hold so many tokens.
  std::string room_for(int64_t n) const {
    const int64_t trained = session_.model->config().context;
    if (n > trained) return fmt::format("this model was trained for {} and no more", trained);
    return fmt::format("--ctx gives more, up to the {} that this model was trained for", trained);
  }
  void require_room(size_t n_prompt) const {
    if (static_cast<int64_t>(n_prompt) < context_) return;
    throw_error(ErrorCode::BadArgument,
                "the prompt has {} tokens, and with an answer it must fit in the context of {}; {}", n_prompt,
                context_, room_for(static_cast<int64_t>(n_prompt) + 1));
  }

  const Options& o_;
  Session& session_;
  Engine& engine_;
  int64_t context_;
  std::optional<ChatFormat> format_;
  std::vector<int32_t> tokens_;  // of the whole conversation so far
  size_t before_ = 0;            // of them: without the last text and its answer
};

void chat(Conversation& conversation) {
  log_info("chat: an empty line or Ctrl-D ends it");
  for (std::string line;;) {
    std::fputs("> ", stderr);
    if (!std::getline(std::cin, line) || line.empty()) break;
    try {
      const Answer a = conversation.say(line, true);
      std::fputc('\n', stdout);
      std::fflush(stdout);
      if (a.finish == FinishReason::Cancelled) break;
      if (a.finish != FinishReason::Context) continue;
      conversation.take_back();  // with it nothing more could be said
      log_warning(conversation.full() + "; the last text and its answer are forgotten");
    } catch (const Error& e) {
      if (e.code() != ErrorCode::BadArgument) throw;
      log_warning(fmt::format("{}; the conversation is as it was before", e.what()));
    }
  }
}

/// What stands in a pipe or a file on stdin, beside a prompt that was given, is not read; to be asked late,
/// when who writes into a pipe has come to it.
void say_unread_input(const Options& o) {
  int n = 0;
  if ((o.prompt.empty() && o.file.empty()) || ::isatty(0) || ::ioctl(0, FIONREAD, &n) != 0 || n <= 0) return;
  log_warning(fmt::format("standard input is not read: the prompt is that of {}",
                          o.file.empty()     ? "--prompt"
                          : o.prompt.empty() ? "--file"
                                             : "--file and --prompt"));
}

std::optional<std::string> read_prompt(const Options& o) {
  std::string text = o.prompt;
  warn_unless_utf8("--prompt", text);
  if (!o.file.empty())
    text = read_text_file(o.file, size_t{1} << 30) + (o.prompt.empty() ? "" : "\n\n" + o.prompt);
  if (o.file.empty() && o.prompt.empty()) {
    if (::isatty(0)) return std::nullopt;
    text = {std::istreambuf_iterator<char>(std::cin), {}};
    warn_unless_utf8("standard input", text);
  }
  if (text.empty())
    throw_error(ErrorCode::BadArgument, "the prompt is empty; give --prompt TEXT, --file FILE or a pipe");
  return text;
}

void run(const Options& o) {
  o.sampling.validate();
  const std::optional<std::string> prompt = read_prompt(o);
  check_method(o);
  require_context(o.model, o.ctx);
  catch_interrupts();
  Session s = open_session(o.model, o.chunk);
  s.require_tokenizer("compare by ids with kv2 logits");
  std::optional<Calibration> calibration;
  if (o.kv.empty() || o.cache.spec(o.kv).method.needs_calibration() || !o.cache.calibration.empty())
    calibration = find_calibration(*s.model, o.cache.calibration);
  const CacheSpec spec = o.cache.spec(
      o.kv.empty() ? default_methods({kDefault}, calibration.has_value(), o.model.model).front() : o.kv);
  require_calibration({spec}, calibration, o.model);
  spec.validate(s.model->config().head_dim);
  const EngineOptions options{.cache = spec,
                              .context = choose_context(*s.model, spec, 1, o.chunk, o.ctx),
                              .n_sequences = 1,
                              .chunk_tokens = o.chunk,
                              .absorb_values = o.absorb};
  Engine engine(*s.model, options, calibration ? &*calibration : nullptr);
  print_start_table(*s.model, spec, engine.cache().plan(), calibration);
  calibration.reset();  // the cache has its own
  trim_heap();
  Conversation conversation(o, s, engine, options.context);
  if (!prompt) return chat(conversation);
  say_unread_input(o);
  const Answer a = conversation.say(*prompt, !o.json);
  if (!o.json) fmt::print("\n");
  report(a, engine, o);
  if (a.finish == FinishReason::Cancelled) throw_error(ErrorCode::Interrupted, "interrupted");
}

}  // namespace

void add_run(CLI::App& program) {
  auto* app = program.add_subcommand("run", "write text, or chat");
  auto o = std::make_shared<Options>();
  o->model.add_to(*app);
  o->cache.add_to(*app);
  app->add_option("--kv", o->kv, kv_help() + "\ndefault: kv2 where a calibration is found, else quarot2");
  app->add_option("-p,--prompt", o->prompt,
                  "the prompt; with --file it follows the file's text; default: standard input");
  app->add_option("-f,--file", o->file, "a prompt file");
  app->add_option("--system", o->system, "system message of a chat; default: the model's own");
  app->add_flag("--raw", o->raw, "no chat template around the prompt");
  app->add_flag("--no-bos", o->no_bos, "never add the begin-of-text token");
  app->add_option("-n,--max-tokens", o->n, "most tokens of an answer")->check(CLI::Range(1, 1 << 24));
  app->add_flag("--ignore-eos", o->ignore_eos, "go on after the end of text");
  app->add_option("--ctx", o->ctx,
                  "tokens of prompt and answer; default: what the model allows and memory holds")
      ->check(at_least(0));
  add_absorb(*app, o->absorb);
  app->add_option("--chunk", o->chunk, "prompt tokens of one step")->check(CLI::Range(1, 1 << 14));
  app->add_option("--temperature", o->sampling.temperature, "0: always the most likely token");
  app->add_option("--top-k", o->sampling.top_k, "0: all");
  app->add_option("--top-p", o->sampling.top_p, "");
  app->add_option("--min-p", o->sampling.min_p, "");
  add_seed(*app, o->sampling.seed, "same seed, same text");
  app->add_flag("--json", o->json, "one JSON object at the end instead of streamed text");
  app->callback([o] { run(*o); });
}

}  // namespace kv2::app
