// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include "base/check.h"
#include "text/added_tokens.h"
#include "text/byte_alphabet.h"
#include "text/recipe.h"
#include "text/subword_model.h"
#include "text/utf8.h"

namespace kv2 {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // positions are 32 bits
constexpr std::string_view kSpaceSymbol = "▁";     // U+2581, SentencePiece's space

std::vector<AddedToken> only(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<AddedToken> out;
  for (const AddedToken& t : tokens)
    if (t.normalized == normalized) out.push_back(t);
  return out;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  for (size_t at; (at = text.find(from)) != std::string_view::npos; text.remove_prefix(at + from.size())) {
    out += text.substr(0, at);
    out += to;
  }
  out += text;
  return out;
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerRecipe r)
      : recipe(std::move(r)),
        model(recipe),
        raw(only(recipe.added, false)),
        normal(only(recipe.added, true)) {
    for (const SplitStep& step : recipe.split) regexes.emplace_back(step.pattern);
    ids.reserve(recipe.tokens.size());
    for (size_t i = 0; i < recipe.tokens.size(); i++)
      if (!recipe.tokens[i].empty()) ids.emplace(recipe.tokens[i], static_cast<int32_t>(i));
  }

  const TokenizerRecipe recipe;
  const SubwordModel model;
  const AddedTokens raw, normal;
  std::vector<Regex> regexes;                         // one per step of recipe.split
  std::unordered_map<std::string_view, int32_t> ids;  // all tokens

  TokenType type(int32_t token) const { return recipe.types[static_cast<size_t>(token)]; }
  bool known(int32_t token) const { return token >= 0 && static_cast<size_t>(token) < recipe.tokens.size(); }
  std::string normalize(std::string_view text) const;
};

/// One call of encode(): its working memory.
class Encoder {
 public:
  Encoder(const TokenizerRecipe& recipe, const SubwordModel& model, const std::vector<Regex>& regexes,
          std::vector<int32_t>& out)
      : recipe_(recipe), model_(model), out_(out) {
    for (const Regex& r : regexes) splitters_.emplace_back(r);
  }

  /// Text between added tokens, not empty.
  void encode(std::string_view text, bool is_first) {
    if (recipe_.kind == TokenizerKind::SentencePiece) {
      std::string escaped = wants_prefix(text, is_first) ? std::string(kSpaceSymbol) : std::string();
      escaped += replace_all(text, " ", kSpaceSymbol);
      return model_.encode(escaped, merger_, out_);
    }
    std::string prefixed;
    if (wants_prefix(text, is_first)) text = prefixed = std::string(1, ' ').append(text);
    // an ill-formed run is a pre-token of its own: no expression sees it, its bytes join among themselves
    // alone
    bool valid = false;
    for (size_t n; !text.empty(); text.remove_prefix(n)) {
      n = utf8_run(text, &valid);
      if (valid)
        encode_well_formed(text.substr(0, n));
      else
        model_.encode(text.substr(0, n), merger_, out_);
    }
  }

 private:
  bool wants_prefix(std::string_view text, bool is_first) const {
    const bool there = text.starts_with(' ') || text.starts_with(kSpaceSymbol);
    switch (recipe_.prefix) {
      case SpacePrefix::Never:
        return false;
      case SpacePrefix::FirstUnlessThere:
        return is_first && !there;
      case SpacePrefix::EachUnlessThere:
        return !there;
      case SpacePrefix::Each:
        return true;
    }
    return false;
  }

  void encode_well_formed(std::string_view text) {
    pieces_.assign(1, text);
    for (size_t i = 0; i < splitters_.size(); i++) {
      finer_.clear();
      for (const std::string_view piece : pieces_) splitters_[i].split(piece, recipe_.split[i].gaps, finer_);
      pieces_.swap(finer_);
    }
    for (const std::string_view piece : pieces_) model_.encode(piece, merger_, out_);
  }

  const TokenizerRecipe& recipe_;
  const SubwordModel& model_;
  std::vector<int32_t>& out_;
  std::vector<RegexSplitter> splitters_;
  std::vector<std::string_view> pieces_, finer_;
  Merger merger_;
};

std::string Tokenizer::Impl::normalize(std::string_view text) const {
  std::string out;
  bool valid = false;
  for (size_t n; !text.empty(); text.remove_prefix(n)) {
    n = utf8_run(text, &valid);
    out += valid ? to_nfc(text.substr(0, n)) : std::string(text.substr(0, n));
  }
  return out;
}

Tokenizer::Tokenizer(TokenizerSpec spec) : impl_(std::make_unique<Impl>(recipe_of(std::move(spec)))) {}
Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

std::unique_ptr<Tokenizer> Tokenizer::from_json(std::string_view json, std::string_view config) {
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::make_unique<Impl>(recipe_of_json(json, config))));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, Special special, Bos bos) const {
  const TokenizerRecipe& recipe = impl_->recipe;
  if (text.size() > kMaxTextBytes)
    throw_error(ErrorCode::BadArgument, "a text of {} bytes; at most {} can be tokenized at once",
                text.size(), kMaxTextBytes);
  std::vector<int32_t> out;
  const bool ends = bos == Bos::AsModelSays;
  Encoder encoder(recipe, impl_->model, impl_->regexes, out);
  const auto encode_normal = [&](Stretch s, bool is_first) {
    if (s.id >= 0)
      out.push_back(s.id);
    else
      encoder.encode(s.text, is_first);
  };
  impl_->raw.split(text, special, [&](Stretch s) {
    const bool is_first = s.text.data() == text.data();
    // a text that spells the begin-of-text token itself gets no second one
    if (ends && is_first && recipe.add_bos && s.id != recipe.bos) out.push_back(recipe.bos);
    if (s.id >= 0) return out.push_back(s.id);
    const std::string normalized = recipe.nfc ? impl_->normalize(s.text) : std::string();
    const std::string_view stretch = recipe.nfc ? std::string_view(normalized) : s.text;
    impl_->normal.split(stretch, special,
                        [&](Stretch t) { encode_normal(t, is_first && t.text.data() == stretch.data()); });
  });
  if (ends && text.empty() && recipe.add_bos) out.push_back(recipe.bos);
  if (ends && recipe.add_eos) out.push_back(recipe.eos);
  return out;
}

std::string Tokenizer::piece(int32_t token, Special special) const {
  if (!impl_->known(token)) return {};
  const std::string& text = impl_->recipe.tokens[static_cast<size_t>(token)];
  if (is_special(token)) return special == Special::AsText ? text : std::string();
  switch (impl_->type(token)) {
    case TokenType::UserDefined:
      return text;
    case TokenType::Byte:
      return std::string(1, static_cast<char>(byte_token_value(text)));
    default:
      break;
  }
  if (impl_->recipe.kind == TokenizerKind::SentencePiece) return replace_all(text, kSpaceSymbol, " ");
  return bytes_of_token(text);
}

std::string Tokenizer::decode(const std::vector<int32_t>& tokens, Special special) const {
  std::string out;
  bool first = strips_leading_space();
  for (const int32_t token : tokens) {
    const std::string bytes = piece(token, special);
    if (bytes.empty()) continue;
    out.append(bytes, first && bytes[0] == ' ' ? 1 : 0);
    first = false;
  }
  return out;
}

bool Tokenizer::strips_leading_space() const {
  return impl_->recipe.kind == TokenizerKind::SentencePiece && impl_->recipe.prefix != SpacePrefix::Never;
}
int Tokenizer::n_missing_bytes() const {
  return impl_->model.n_missing_bytes();
}
int32_t Tokenizer::n_tokens() const {
  return static_cast<int32_t>(impl_->recipe.tokens.size());
}
int32_t Tokenizer::bos() const {
  return impl_->recipe.bos;
}
int32_t Tokenizer::eos() const {
  return impl_->recipe.eos;
}
bool Tokenizer::is_special(int32_t token) const {
  return impl_->known(token) &&
         (impl_->type(token) == TokenType::Control || impl_->type(token) == TokenType::Unknown);
}
int32_t Tokenizer::find(std::string_view token_text) const {
  const auto it = impl_->ids.find(token_text);
  return it == impl_->ids.end() ? -1 : it->second;
}

std::string Detokenizer::push(int32_t token) {
  std::string bytes = tokenizer_.piece(token, Tokenizer::Special::Parse);
  if (bytes.empty()) return {};
  if (first_ && tokenizer_.strips_leading_space() && bytes[0] == ' ') bytes.erase(0, 1);
  first_ = false;
  held_ += bytes;
  std::string out;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const Utf8Step step = utf8_step(rest);
    if (step.status == Utf8Status::Incomplete) break;
    if (step.status == Utf8Status::Valid)
      out += rest.substr(0, step.length);
    else
      utf8_append(out, 0xFFFD);
    rest.remove_prefix(step.length);
  }
  held_ = std::string(rest);
  return out;
}

std::string Detokenizer::finish() {
  std::string out = replace_invalid_utf8(held_);
  held_.clear();
  return out;
}

}  // namespace kv2
