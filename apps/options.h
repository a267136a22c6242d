// SPDX-License-Identifier: Apache-2.0
// Options that several subcommands share, and what they open: one place for names, defaults and help texts.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/device.h"
#include "engine/engine.h"
#include "kv2/cache.h"
#include "kv2/calibrate.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace kv2::app {

struct ModelOptions {
  std::string model, device = "cpu", linears = "auto", huge_pages = "on";
  int threads = 0;
  bool pin = false;

  void add_to(CLI::App& app);
  void add_device_to(CLI::App& app);  // all but the model
  DeviceOptions device_options() const;
};

/// A model ready to run; the tokenizer may be missing (`why_no_tokenizer` says why).
struct Session {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::string why_no_tokenizer, chat_template;

  /// The tokenizer, or an error that says why there is none and what to do.
  const Tokenizer& require_tokenizer(const std::string& instead) const;
};
Session open_session(const ModelOptions& options, int max_rows);

struct CacheOptions {
  std::string calibration, prefill = "windowed", layers;
  int sink = 64, recent = 256;

  void add_to(CLI::App& app);
  /// The spec of one --kv text under these windows.
  CacheSpec spec(const std::string& kv) const;
  /// Of a list of them (add_kv_list). Where --kv-layers is given, bf16 stays as it is beside a method in
  /// codes.
  std::vector<CacheSpec> specs(const std::vector<std::string>& kv) const;

 private:
  CacheSpec windowed(const std::string& text) const;
  std::string with_layers(const std::string& kv) const;
};
/// Help text of --kv with all methods.
std::string kv_help();
/// A repeatable --kv option: every occurrence may hold several methods, split by commas
/// ("bf16,oscar2:clip-k=0.9,naive2": a piece with '=' belongs to the method before it).
CLI::Option* add_kv_list(CLI::App& app, std::vector<std::string>& kv, const std::string& defaults);
std::vector<std::string> split_methods(const std::vector<std::string>& texts);

/// --absorb: EngineOptions::absorb_values.
void add_absorb(CLI::App& app, bool& absorb);
/// One line on stderr where W_o has absorbed V's basis.
void say_absorbed(const Model& model, const CacheSpec& spec);

/// The file given by --calibration, or the one in the user's cache made for this model; nullopt when neither
/// exists.
std::optional<std::string> calibration_file(const Model& model, const std::string& path);
/// What that file holds. Throws when it is unreadable or made for another model.
std::optional<Calibration> find_calibration(const Model& model, const std::string& path);

/// Throws BadArgument with the command that makes one where a method needs a calibration and there is none.
void require_calibration(const std::vector<CacheSpec>& specs, const std::optional<Calibration>& calibration,
                         const ModelOptions& model);

/// What is run where --kv is not given: `texts`, with kv2 in quarot2's place where the model is calibrated; a
/// line on stderr where it is not.
std::vector<std::string> default_methods(std::vector<std::string> texts, bool calibrated,
                                         const std::string& model);
/// `parse` both of these, before a model is loaded and so before it is known whether it is calibrated: what a
/// command takes does not depend on that.
void check_default_methods(const std::vector<std::string>& texts,
                           const std::function<void(const std::vector<std::string>&)>& parse);

/// A check of whole numbers whose message people can read; the parser's own spell out the largest double.
CLI::Validator at_least(int64_t least);

/// --seed. The parser alone would take -1 for 2^64 - 1.
CLI::Option* add_seed(CLI::App& app, uint64_t& seed, const std::string& description);

/// Token ids from --text (needs the tokenizer) or --tokens (.npy). Exactly one must be given.
struct TokenSource {
  std::string text_file, tokens_file;
  void add_to(CLI::App& app);
  bool given() const { return !text_file.empty() || !tokens_file.empty(); }
  std::vector<int32_t> read(const Session& session) const;
};

/// Throws BadArgument for a context past the positions that a model was trained for; 0 asks for none. Reads
/// the head of its file alone, so that it can be said before the weights are loaded.
void require_context(const ModelOptions& options, int64_t asked);
/// Tokens per sequence: `asked`, or (0) what the model was trained for if memory holds that, else what fits.
/// Errors: BadArgument past the model's positions, OutOfMemory naming what would fit.
int64_t choose_context(const Model& model, const CacheSpec& spec, int n_sequences, int chunk_tokens,
                       int64_t asked);

/// One table on stderr: what is loaded, quantized, allocated, absorbed and chosen.
void print_start_table(const Model& model, const CacheSpec& spec, const CachePlan& plan,
                       const std::optional<Calibration>& calibration);

// Subcommands: each adds itself to the program and runs when chosen.
void add_run(CLI::App& program);
void add_calibrate(CLI::App& program);
void add_eval(CLI::App& program);
void add_logits(CLI::App& program);
void add_tokenize(CLI::App& program);
void add_inspect(CLI::App& program);
void add_plan(CLI::App& program);
void add_bench(CLI::App& program);

}  // namespace kv2::app
