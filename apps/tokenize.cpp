// SPDX-License-Identifier: Apache-2.0
// kv2 tokenize MODEL: text -> ids (JSON on stdout), or with --decode ids -> text. Loads no weights.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "apps/options.h"
#include "base/check.h"
#include "text/text_file.h"

namespace kv2::app {
namespace {

struct Options {
  std::string model, text, file;
  bool special = false, decode = false, pieces = false, no_bos = false;
};

std::string input(const Options& o) {
  if (!o.file.empty()) return read_text_file(o.file, size_t{1} << 30);
  std::string text = !o.text.empty() ? o.text : std::string(std::istreambuf_iterator<char>(std::cin), {});
  warn_unless_utf8(o.text.empty() ? "standard input" : "--prompt", text);
  return text;
}

std::vector<int32_t> parse_ids(const std::string& text, const Tokenizer& t) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_array())
    throw_error(ErrorCode::BadArgument, "--decode reads a JSON array of ids, as in [1, 2, 3]");
  std::vector<int32_t> ids;
  for (const auto& x : json) {
    if (!x.is_number_integer() || x.get<int64_t>() < 0 || x.get<int64_t>() >= t.n_tokens())
      throw_error(ErrorCode::BadArgument, "{} is not an id below {}", x.dump(), t.n_tokens());
    ids.push_back(x.get<int32_t>());
  }
  return ids;
}

void run(const Options& o) {
  const auto file = open_model_file(o.model);
  std::string why;
  const auto t = load_tokenizer(*file, &why);
  if (!t) throw_error(ErrorCode::Unsupported, "this model's tokenizer cannot be used: {}", why);
  const auto special = o.special ? Tokenizer::Special::Parse : Tokenizer::Special::AsText;
  if (o.decode) {
    fmt::print("{}", t->decode(parse_ids(input(o), *t), Tokenizer::Special::AsText));
    return;
  }
  const auto ids =
      t->encode(input(o), special, o.no_bos ? Tokenizer::Bos::Never : Tokenizer::Bos::AsModelSays);
  if (!o.pieces) {
    fmt::print("[{}]\n", fmt::join(ids, ", "));
    return;
  }
  for (int32_t id : ids) {
    const nlohmann::json piece = t->piece(id, Tokenizer::Special::AsText);
    fmt::print("{}\t{}\n", id, piece.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
}

}  // namespace

void add_tokenize(CLI::App& program) {
  auto* app = program.add_subcommand("tokenize", "text to token ids and back");
  auto o = std::make_shared<Options>();
  app->add_option("model", o->model, "a .gguf file or a Hugging Face directory")->required();
  auto* text = app->add_option("--prompt", o->text, "the text; default: standard input");
  app->add_option("--text", o->file, "a text file")->excludes(text);
  app->add_flag("--special", o->special, "special tokens in the text become tokens");
  app->add_flag("--pieces", o->pieces, "one line per token: id, tab, text as JSON");
  app->add_flag("--no-bos", o->no_bos, "never add the begin-of-text token");
  app->add_flag("--decode", o->decode, "the input is a JSON array of ids; print their text");
  app->callback([o] { run(*o); });
}

}  // namespace kv2::app
