// SPDX-License-Identifier: Apache-2.0
#include "apps/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>

#include "apps/command_line.h"
#include "base/check.h"
#include "base/log.h"
#include "base/memory.h"
#include "cache/cache_plan.h"
#include "calibrate/calibrate.h"
#include "eval/npy.h"
#include "ops/device_extras.h"
#include "text/text_file.h"

namespace kv2::app {

void ModelOptions::add_to(CLI::App& app) {
  app.add_option("model", model, "a .gguf file or a Hugging Face directory")->required();
  add_device_to(app);
}

void ModelOptions::add_device_to(CLI::App& app) {
  app.add_option("--device", device,
                 "cpu, cuda:0 (in builds with CUDA), or reference (the scalar oracle, slow)");
  app.add_option("--threads", threads,
                 "default: the cores this process may use; hardware threads of a core count once")
      ->check(CLI::Range(0, 1024));
  app.add_flag("--pin", pin,
               "bind every thread but the first to a CPU of its own, of different cores while there are any");
  app.add_option("--huge-pages", huge_pages, "on: ask for them where memory is large enough (device cpu)")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--linears", linears,
                 "auto: coded weights straight from the file's codes, others bf16; or bf16 or f32 for all")
      ->check(CLI::IsMember({"auto", "bf16", "f32"}));
}

DeviceOptions ModelOptions::device_options() const {
  return {.device = device,
          .n_threads = threads,
          .pin = pin,
          .linear_precision = linears == "f32"    ? LinearPrecision::F32
                              : linears == "bf16" ? LinearPrecision::Bf16
                                                  : LinearPrecision::Auto,
          .huge_pages = huge_pages == "on"};
}

const Tokenizer& Session::require_tokenizer(const std::string& instead) const {
  if (!tokenizer)
    throw_error(ErrorCode::Unsupported, "this model's tokenizer cannot be used: {}; {}", why_no_tokenizer,
                instead);
  return *tokenizer;
}

Session open_session(const ModelOptions& options, int max_rows) {
  Session s;
  s.backend = open_device(options.device_options());
  s.model = Model::load(options.model, *s.backend, max_rows);
  s.tokenizer = load_tokenizer(s.model->file(), &s.why_no_tokenizer);
  s.chat_template = load_chat_template(s.model->file());
  return s;
}

void CacheOptions::add_to(CLI::App& app) {
  app.add_option("--calibration", calibration,
                 "file of `kv2 calibrate`; default: the one in the user's cache");
  app.add_option("--prefill", prefill,
                 "windowed: prompts read what decode will read; exact: prompts read bf16")
      ->check(CLI::IsMember({"windowed", "exact"}));
  app.add_option("--sink", sink, "first tokens kept in bf16, a multiple of 64");
  app.add_option("--recent", recent, "last tokens kept in bf16, a multiple of 64");
  app.add_option(
      "--kv-layers", layers,
      "layers stored in another form, negative ones from the end: '0,1,-1,-2=int8 5=bf16 7,8=k3v2' (8 bits "
      "rounded; as they are; the method with other bits)");
}

/// The method's text with --kv-layers as its parameter `layers`.
std::string CacheOptions::with_layers(const std::string& kv) const {
  if (layers.empty()) return kv;
  if (kv == "bf16")
    throw_error(ErrorCode::BadArgument,
                "--kv-layers '{}': bf16 keeps all layers as they are; name a method in codes with --kv",
                layers);
  std::stringstream pieces(layers);
  for (std::string piece; pieces >> piece;)
    if (piece.find('=') == piece.npos)
      throw_error(ErrorCode::BadArgument,
                  "--kv-layers '{}': '{}' has layers without their form; it takes LAYERS=FORM with a space "
                  "between, as in '0,1,-1=int8 5=bf16 7,8=k3v2'",
                  layers, piece);
  std::string value = layers;
  for (char& c : value) c = c == ',' ? '/' : c == ' ' ? '+' : c;
  return fmt::format("{}{}layers={}", kv, kv.find(':') == kv.npos ? ':' : ',', value);
}

std::vector<CacheSpec> CacheOptions::specs(const std::vector<std::string>& kv) const {
  const std::vector<std::string> texts = split_methods(kv);
  const bool any_codes = std::any_of(texts.begin(), texts.end(), [](auto& text) { return text != "bf16"; });
  std::vector<CacheSpec> out;
  for (const std::string& text : texts)
    out.push_back(windowed(any_codes && text == "bf16" ? text : with_layers(text)));
  return out;
}

CacheSpec CacheOptions::spec(const std::string& kv) const {
  return windowed(with_layers(kv));
}

CacheSpec CacheOptions::windowed(const std::string& text) const {
  CacheSpec s = CacheSpec::parse(text);
  s.sink_tokens = sink;
  s.recent_tokens = recent;
  s.prefill = prefill == "exact" ? PrefillPolicy::Exact : PrefillPolicy::Windowed;
  return s;
}

std::string kv_help() {
  std::string text = "KV cache method, parameters after a colon ('oscar2:clip-k=0.96,group=32')";
  for (const MethodInfo& m : methods()) text += fmt::format("\n  {}: {}", m.name, m.description);
  return text;
}

void add_absorb(CLI::App& app, bool& absorb) {
  app.add_flag(
      "--absorb", absorb,
      "V's way back from the method's basis becomes a part of W_o: an op less in every layer, and W_o "
      "rounded in that basis; float weights only (a GPU's are; on a CPU --linears bf16 or f32)");
}

void say_absorbed(const Model& model, const CacheSpec& spec) {
  if (model.has_absorbed_values())
    log_info(fmt::format("absorbed     V's way back from the basis of {}, by W_o", spec.method_text()));
}

CLI::Option* add_kv_list(CLI::App& app, std::vector<std::string>& kv, const std::string& defaults) {
  kv = {defaults};
  return app.add_option("--kv", kv, kv_help() + "\nseveral: --kv bf16,naive2 or --kv repeated")
      ->allow_extra_args(false)
      ->type_name("METHOD")
      ->capture_default_str();
}

std::vector<std::string> split_methods(const std::vector<std::string>& texts) {
  std::vector<std::string> out;
  for (const std::string& text : texts) {
    bool fresh = true;  // the next piece starts a method even if it has '='
    for (size_t from = 0; from <= text.size();) {
      const size_t comma = std::min(text.find(',', from), text.size());
      const std::string piece = text.substr(from, comma - from);
      const bool parameter = piece.find('=') != std::string::npos && piece.find(':') == std::string::npos;
      if (fresh || !parameter)
        out.push_back(piece);
      else
        out.back() += "," + piece;
      fresh = false;
      from = comma + 1;
    }
  }
  return out;
}

std::optional<std::string> calibration_file(const Model& model, const std::string& path) {
  if (!path.empty()) return path;
  const std::string own = default_calibration_path(model.fingerprint());
  return std::filesystem::exists(own) ? std::optional(own) : std::nullopt;
}

std::optional<Calibration> find_calibration(const Model& model, const std::string& path) {
  const std::optional<std::string> file = calibration_file(model, path);
  if (!file) return std::nullopt;
  Calibration c = Calibration::load(*file);
  c.require_model(model.fingerprint());
  return c;
}

void require_calibration(const std::vector<CacheSpec>& specs, const std::optional<Calibration>& calibration,
                         const ModelOptions& model) {
  for (const CacheSpec& spec : specs)
    if (spec.method.needs_calibration() && !calibration)
      throw_error(
          ErrorCode::BadArgument,
          "method {} needs a calibration of this model and there is none; make one with: kv2 calibrate {}",
          spec.method.name, shell_quoted(model.model));
}

namespace {

std::vector<std::string> where_calibrated(std::vector<std::string> texts) {
  std::replace(texts.begin(), texts.end(), std::string("quarot2"), std::string("kv2"));
  return texts;
}

}  // namespace

std::vector<std::string> default_methods(std::vector<std::string> texts, bool calibrated,
                                         const std::string& model) {
  if (calibrated) return where_calibrated(std::move(texts));
  log_info(fmt::format(
      "no calibration of this model was found: quarot2, which needs none, is taken; better: kv2 calibrate {}",
      shell_quoted(model)));
  return texts;
}

void check_default_methods(const std::vector<std::string>& texts,
                           const std::function<void(const std::vector<std::string>&)>& parse) {
  parse(texts);
  try {
    parse(where_calibrated(texts));
  } catch (const Error& e) {
    throw_error(e.code(),
                "{}; without --kv kv2 is chosen where a calibration is found; the other choice is --kv {}",
                e.what(), fmt::join(texts, ","));
  }
}

CLI::Validator at_least(int64_t least) {
  return CLI::Validator(
      [least](const std::string& text) {
        int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc() || end != text.data() + text.size() || value >= least) return std::string();
        return fmt::format("{} or more is expected, not {}", least, text);
      },
      fmt::format("INT >= {}", least));
}

CLI::Option* add_seed(CLI::App& app, uint64_t& seed, const std::string& description) {
  return app.add_option("--seed", seed, description)->check([](const std::string& text) {
    return text.starts_with("-") ? "a seed is a number from 0 to 2^64 - 1, not " + text : std::string();
  });
}

void TokenSource::add_to(CLI::App& app) {
  auto* text = app.add_option("--text", text_file, "a text file");
  auto* tokens = app.add_option("--tokens", tokens_file, "token ids, a .npy file of integers");
  text->excludes(tokens);
}

std::vector<int32_t> TokenSource::read(const Session& session) const {
  std::vector<int32_t> ids;
  if (!tokens_file.empty()) {
    ids = read_npy_tokens(tokens_file);
  } else if (!text_file.empty()) {
    const std::string text = read_text_file(text_file, size_t{1} << 30);
    ids = session.require_tokenizer("give token ids with --tokens FILE.npy")
              .encode(text, Tokenizer::Special::AsText, Tokenizer::Bos::AsModelSays);
  } else {
    throw_error(ErrorCode::BadArgument, "no text: give --text FILE or --tokens FILE.npy");
  }
  const int vocab = session.model->config().vocab;
  for (size_t i = 0; i < ids.size(); i++)
    if (ids[i] < 0 || ids[i] >= vocab)
      throw_error(ErrorCode::BadArgument, "token {} at index {} is outside this model's vocabulary of {}",
                  ids[i], i, vocab);
  return ids;
}

namespace {

void require_trained(int64_t asked, int64_t trained) {
  if (asked < 0) throw_error(ErrorCode::BadArgument, "--ctx must be positive, found {}", asked);
  if (asked > trained)
    throw_error(ErrorCode::BadArgument, "--ctx {} is past the {} positions this model was trained for", asked,
                trained);
}

}  // namespace

void require_context(const ModelOptions& options, int64_t asked) {
  if (asked != 0) require_trained(asked, read_config(*open_model_file(options.model)).context);
}

int64_t choose_context(const Model& model, const CacheSpec& spec, int n_sequences, int chunk_tokens,
                       int64_t asked) {
  const int64_t trained = model.config().context;
  require_trained(asked, trained);
  const CacheCapacity capacity{.context_tokens = asked > 0 ? asked : trained,
                               .n_sequences = n_sequences,
                               .chunk_tokens = chunk_tokens};
  const KvShape shape = model.config().kv_shape();
  const size_t room = free_memory(model.backend()), needed = plan_cache(spec, shape, capacity).total_bytes();
  const size_t spare = std::min<size_t>(room / 20, size_t{256} << 20);  // for the program's own small things
  if (needed + spare <= room) return capacity.context_tokens;
  const int64_t fits = context_that_fits(spec, shape, capacity, room > spare ? room - spare : 0);
  if (asked > 0 || fits < 1)
    throw_error(ErrorCode::OutOfMemory,
                "a context of {} tokens needs {} of KV cache and {} are free; {} would fit (--ctx {})",
                capacity.context_tokens, format_bytes(needed), format_bytes(room), fits, fits);
  log_info(fmt::format("context: {} tokens fit in memory (the model allows {})", fits, trained));
  return fits;
}

void print_start_table(const Model& model, const CacheSpec& spec, const CachePlan& plan,
                       const std::optional<Calibration>& calibration) {
  const ModelConfig& c = model.config();
  const auto& l = plan.layout;
  const size_t page = spec.method.quantized() ? l.packed_page_bytes() : l.full_page_bytes();
  std::string basis = "none needed";
  if (spec.method.needs_calibration() && calibration)
    basis = fmt::format("{} tokens, text {}", calibration->n_tokens, calibration->text_hash);
  std::string quantized = "none (bf16)";
  if (spec.method.quantized())
    quantized =
        fmt::format("{} layers, {} KV heads of {}: {}", c.n_layers, c.n_kv_heads, c.head_dim, l.describe());
  log_info(fmt::format("model        {} ({}), weights {}", c.name.empty() ? "?" : c.name,
                       name_of(c.architecture), format_bytes(model.weight_bytes())));
  log_info(fmt::format("backend      {}", model.backend().describe()));
  log_info(fmt::format("kv           {}", spec.describe()));
  log_info(fmt::format("quantized    {}", quantized));
  log_info(fmt::format("calibration  {}", basis));
  say_absorbed(model, spec);
  log_info(fmt::format("bits         {:.4g} per element in the history, {:.4g} all-in at {} tokens",
                       l.history_bits(), plan.all_in_bits(plan.capacity.context_tokens),
                       plan.capacity.context_tokens));
  log_info(fmt::format("bytes        {} per token of history", page / kPageTokens));
  log_info(fmt::format("pages        {} full ({}), {} packed ({})", plan.n_full_pages,
                       format_bytes(plan.full_bytes), plan.n_packed_pages, format_bytes(plan.packed_bytes)));
  log_info(fmt::format("memory       kv {}, scratch {}", format_bytes(plan.total_bytes()),
                       format_bytes(model.scratch_bytes())));
}

}  // namespace kv2::app
