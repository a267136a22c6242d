// SPDX-License-Identifier: Apache-2.0
#include "apps/prompts.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/check.h"
#include "base/log.h"
#include "text/text_file.h"

namespace kv2::app {
namespace {

using Ids = std::vector<int32_t>;

Ids encode(const Session& s, const std::string& text) {
  return s.require_tokenizer("give prompts as token ids: a JSON array of arrays, or --tokens FILE.npy")
      .encode(text, Tokenizer::Special::AsText, Tokenizer::Bos::AsModelSays);
}

Ids ids_of(const nlohmann::json& prompt, const std::string& where) {
  Ids out;
  for (const nlohmann::json& id : prompt) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
        id.get<int64_t>() > std::numeric_limits<int32_t>::max())
      throw_error(ErrorCode::BadFile, "{}: a token id expected, found {}", where, id.dump());
    out.push_back(id.get<int32_t>());
  }
  return out;
}

std::vector<Ids> from_json(const Session& s, const std::string& text, const std::string& name) {
  nlohmann::json root;
  try {
    root = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& e) {
    throw_error(ErrorCode::BadFile, "{}: begins as a JSON array, but: {}", name, e.what());
  }
  std::vector<Ids> out;
  for (const nlohmann::json& prompt : root) {
    const std::string where = fmt::format("{}: prompt {}", name, out.size());
    if (!prompt.is_string() && !prompt.is_array())
      throw_error(ErrorCode::BadFile, "{}: a string or an array of token ids expected, found {}", where,
                  prompt.type_name());
    out.push_back(prompt.is_string() ? encode(s, prompt.get<std::string>()) : ids_of(prompt, where));
    if (out.back().empty()) throw_error(ErrorCode::BadArgument, "{} is empty", where);
  }
  return out;
}

std::vector<Ids> from_lines(const Session& s, const std::string& text) {
  std::vector<Ids> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.find_first_not_of(" \t") != std::string::npos) out.push_back(encode(s, line));
  }
  return out;
}

std::vector<Ids> from_file(const Session& s, const std::string& name) {
  const std::string text = read_text_file(name, size_t{1} << 28);
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool json = first != std::string::npos && text[first] == '[';
  std::vector<Ids> out = json ? from_json(s, text, name) : from_lines(s, text);
  if (out.empty())
    throw_error(ErrorCode::BadArgument,
                "{}: no prompt in it; one per line, or a JSON array of strings or of token ids", name);
  return out;
}

}  // namespace

void PromptSource::add_to(CLI::App& app) {
  auto* prompts = app.add_option(
      "--prompts", file, "prompts: one per line, or a JSON array of strings or of arrays of token ids");
  auto* text = app.add_option("--text", texts, "a text file; may be given several times");
  auto* ids = app.add_option("--tokens", tokens, "token ids, a .npy file; may be given several times");
  for (auto* other : {text, ids}) prompts->excludes(other->allow_extra_args(false));
  app.add_option("--pieces", pieces, "prompts taken from --text and --tokens, evenly over them")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--prompt-tokens", piece_tokens, "tokens of each of them")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
}

std::vector<Ids> PromptSource::read(const Session& session) const {
  if (!file.empty()) return from_file(session, file);
  std::vector<TokenSource> sources;
  for (const std::string& name : texts) sources.push_back({.text_file = name, .tokens_file = ""});
  for (const std::string& name : tokens) sources.push_back({.text_file = "", .tokens_file = name});
  if (sources.empty())
    throw_error(ErrorCode::BadArgument,
                "no prompts: give --prompts FILE, or --text FILE or --tokens FILE.npy");
  const auto n_sources = static_cast<int64_t>(sources.size());
  if (n_sources > pieces)
    throw_error(ErrorCode::BadArgument, "{} texts and {} pieces of them: give --pieces {} or more", n_sources,
                pieces, n_sources);
  std::vector<Ids> out(static_cast<size_t>(pieces));
  for (int64_t s = 0; s < n_sources; s++) {
    const int64_t n_own = (pieces - s + n_sources - 1) / n_sources;  // pieces s, s + n_sources, …
    std::vector<Ids> own = cut(session, sources[static_cast<size_t>(s)].read(session), n_own);
    for (int64_t i = 0; i < n_own; i++)
      out[static_cast<size_t>(s + i * n_sources)] = std::move(own[static_cast<size_t>(i)]);
  }
  return out;
}

/// n pieces of one text, the first at its beginning, the last at its end.
std::vector<Ids> PromptSource::cut(const Session& session, const Ids& all, int64_t n) const {
  const auto length = static_cast<int64_t>(all.size());
  if (length < piece_tokens)
    throw_error(ErrorCode::BadArgument, "the text has {} tokens, a prompt of {} is asked for", length,
                piece_tokens);
  if (n * piece_tokens > length)
    log_warning(fmt::format(
        "{} prompts of {} tokens overlap in a text of {}: they say less than as many different ones", n,
        piece_tokens, length));
  const int32_t bos = session.tokenizer ? session.tokenizer->bos() : -1;
  const bool starts = all.front() == bos && bos >= 0;
  std::vector<Ids> out;
  for (int64_t i = 0; i < n; i++) {
    const int64_t from = n > 1 ? (length - piece_tokens) * i / (n - 1) : 0;
    Ids piece(all.begin() + from, all.begin() + from + piece_tokens);
    if (starts) piece.front() = bos;  // every text of such a model begins with it
    out.push_back(std::move(piece));
  }
  return out;
}

}  // namespace kv2::app
